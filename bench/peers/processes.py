"""
Processes of a run: each in a session of its own, and ended with all its children whatever happens.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from bench.peers.environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

GRACE_S = 5.0  #: for a worker to end by itself after SIGTERM


class Failed(RuntimeError):
    """
    A process did not do what it was started for.
    """


@contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str], log: Path, *, pipes: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """
    Run *command* meanwhile; what it says goes to *log*, or with *pipes* what it says on stdout to the caller.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with _undisturbed(), log.open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**_surroundings(), **variables},
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out,
                stderr=out,
                start_new_session=True,
            )
        yield process
    finally:
        if process is not None:
            with _undisturbed():
                end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """
    End *process* and all of its group: asked first, killed after a grace.
    """
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    _signal(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and not ended(process):
        time.sleep(0.01)
    _signal(process.pid, signal.SIGKILL)
    process.wait(GRACE_S)


def ended(process: subprocess.Popen[bytes]) -> bool:
    """
    Return whether *process* has ended, without reaping it: its children are found by its number until then.
    """
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _surroundings() -> dict[str, str]:
    """
    The environment without what would lead one system to the settings or packages of another.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DULY_", "PYTHON", "CELERY_", "DOCKET_", "RQ_", "dramatiq_", "PEERS_"))
    }


@contextmanager
def _undisturbed() -> Iterator[None]:
    """
    Put off Ctrl-C and SIGTERM while a process begins or ends, so that none is left behind.

    By handlers and not by a mask: a process that is started would inherit the mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: heard.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])


class Agent:
    """
    A producer that waits for its turn.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._heard = b""

    def hear(self, patience_s: float) -> dict[str, Any]:
        """
        What it says next.

        Raises:
            Failed: It said nothing in time, or has ended; the message has the end of its log.
        """
        out: IO[bytes] | None = self._process.stdout
        assert out is not None  # asked for
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise Failed(f"no answer within {patience_s:g} s{tail(self._log)}")
            part = os.read(out.fileno(), 1 << 16)
            if not part:
                raise Failed(f"ended without an answer{tail(self._log)}")
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go(self, size: object, patience_s: float) -> dict[str, Any]:
        """
        Let it send, and hear how that went.
        """
        assert self._process.stdin is not None  # asked for
        self._process.stdin.write(json.dumps(size).encode() + b"\n")
        self._process.stdin.flush()
        return self.hear(patience_s)


@contextmanager
def agent(command: Sequence[str], variables: Mapping[str, str], log: Path) -> Iterator[Agent]:
    """
    An agent that is connected and ready.
    """
    with running(command, variables, log, pipes=True) as process:
        yield Agent(process, log)


def tail(log: Path, size: int = 1500) -> str:
    """
    The end of a log, to be put behind a sentence.
    """
    text = log.read_text("utf-8", errors="replace").strip() if log.exists() else ""
    return f":\n{text[-size:]}" if text else ""
