"""
Start keepers and listen to what they have to say.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from duly.embedded import keeper
from duly.embedded.locks import POLL_S
from duly.errors import ServerUnsuitable, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0  #: clients that wait for another one's keeper would start theirs in vain all the time


def _popen(words: list[str], stderr: int) -> Callable[[], object]:
    """
    Start a program in a session of its own: Ctrl-C in a terminal is meant for the program that runs there.

    Returns: what reaps it.
    """
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
    ).wait


def _spawn(words: list[str], stderr: int) -> Callable[[], object]:
    """
    Do the same in a process that gevent has patched, where its subprocess works in the main thread only.
    """
    from gevent.monkey import get_original  # noqa: PLC0415  # only where it is used already

    posix_spawn, waitpid = get_original("os", ["posix_spawn", "waitpid"])
    pid = posix_spawn(
        words[0],
        words,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, stderr, 2),
        ],
        setsid=True,
    )

    def reap() -> None:
        # gevent's own loop may have reaped it before.
        with suppress(ChildProcessError):
            while waitpid(pid, os.WNOHANG) == (0, 0):
                time.sleep(POLL_S)

    return reap


class Launch:
    """
    One attempt to start a keeper, which may find that another one is there already.
    """

    def __init__(self, root: Path, binary: Path, durability: str, linger_s: float) -> None:
        if not sys.executable:
            raise ServerUnsuitable("this Python does not know its own executable, so cannot start a keeper")
        # Run by path: `-m duly.embedded.keeper` would first import the whole package.
        program = [sys.executable, "-I", "-S", keeper.__file__]
        gevent = sys.modules.get("gevent.monkey")  # who patches has imported it
        start = _spawn if gevent is not None and gevent.is_module_patched("subprocess") else _popen
        self._pipe, heard = os.pipe()
        try:
            self._reap = start([*program, str(root), str(binary), durability, str(linger_s)], heard)
        except OSError as error:
            os.close(self._pipe)
            raise StoreUnavailable(f"cannot start {sys.executable}: {error.strerror}") from error
        finally:
            os.close(heard)
        os.set_blocking(self._pipe, False)
        self._words = b""

    @property
    def words(self) -> str:
        """
        What the keeper has said so far, its last line.
        """
        return self._words.decode(errors="replace").strip().rpartition("\n")[2]

    def ended(self) -> bool:
        """
        Say whether the keeper has ended: without a word if another one is there.
        """
        while True:
            try:
                heard = os.read(self._pipe, 4096)
            except BlockingIOError:
                return False
            if not heard:
                return True
            self._words = (self._words + heard)[-4096:]

    def close(self) -> None:
        """
        Stop listening.  The keeper goes on.
        """
        os.close(self._pipe)
        # The process that was started ends as soon as it has made the keeper; this only reaps it.
        self._reap()


class Launches:
    """
    Attempts at a keeper, one after another, until one has brought up the server or enough have said why not.
    """

    def __init__(self, root: Path, binary: Path, durability: str, *, linger_s: float) -> None:
        self._root = root
        self._binary = binary
        self._durability = durability
        self._linger_s = linger_s
        self._launch: Launch | None = None
        self._not_before = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._failures = 0
        self._reason = ""

    @property
    def reason(self) -> str:
        """
        Why there is no server, as the latest keeper told it.
        """
        return (self._launch.words if self._launch is not None else "") or self._reason

    def pursue(self, now: float) -> int:
        """
        See to it that a keeper is under way, and return how many have failed.

        One that ends without a word has not: it found another keeper at work, or was killed.
        """
        if self._launch is None:
            if now >= self._not_before:
                self._launch = Launch(self._root, self._binary, self._durability, self._linger_s)
        elif self._launch.ended():
            if self._launch.words:
                self._reason = self._launch.words
                self._failures += 1
            self.close()
            self._not_before = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return self._failures

    def close(self) -> None:
        """
        Stop listening.
        """
        if self._launch is not None:
            self._launch.close()
            self._launch = None
