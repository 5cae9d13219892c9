"""
A terminal to look at live views in: the program runs under a pseudo-terminal, and pyte draws what it writes.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pyte

ROOT = Path(__file__).parent.parent.parent


def environment(**more: str) -> dict[str, str]:
    """
    An environment without settings of duly, without anything that changes how output looks.
    """
    unwanted = ("DULY_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    paths = {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    return clean | paths | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | more


def duly(*words: str) -> list[str]:
    return [sys.executable, "-m", "duly", *words]


class Terminal:
    """
    A program on a terminal of its own, as its session leader's user sees it.
    """

    def __init__(
        self, command: list[str], *, columns: int = 100, lines: int = 40, cwd: Path | None = None, **env: str
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=environment(**env),
            start_new_session=True,
            # Makes it the controlling terminal, so that Ctrl-C typed there becomes SIGINT.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # no threads matter here
        )
        os.close(slave)
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        while True:
            try:
                select.select([self._master], [], [])
                data = os.read(self._master, 65536)
            except OSError:
                return
            if not data:
                return
            with self._lock:
                self._stream.feed(data)

    def text(self) -> str:
        with self._lock:
            return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, *wanted: str, unwanted: str = "", within_s: float = 60) -> str:
        """
        The screen, once all wanted patterns are on it together and the unwanted one is not.

        What is to be seen is all named here, never looked for in what was found: a look may fall
        into the middle of a picture being drawn.
        """
        deadline = time.monotonic() + within_s
        while True:
            seen = self.text()
            missing = [pattern for pattern in wanted if not re.search(pattern, seen)]
            if not missing and not (unwanted and re.search(unwanted, seen)):
                return seen
            assert time.monotonic() < deadline, f"{missing} not within {within_s} s; the screen is\n{seen}"
            time.sleep(0.02)

    def wait(self, within_s: float = 60) -> int:
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {within_s} s; the screen is\n{self.text()}") from None
        self._thread.join(5)
        return code

    @property
    def echoes(self) -> bool:
        """
        Whether the terminal shows what is typed, as a shell needs it to.
        """
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._thread.join(5)
        os.close(self._master)
