"""
One child process: its lines, its signals, its end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import duly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LINE_BYTES = 1 << 20  #: a longer line is passed on in parts


@dataclass(frozen=True, slots=True)
class Program:
    """
    What to run, under which name.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None


def duly_command(*words: str) -> tuple[str, ...]:
    """
    A command of duly as a child: it ends, as if by SIGTERM, when the process that started it is gone.
    """
    return (sys.executable, "-m", "duly.cli.tethered", *words)


def environment(**more: str) -> dict[str, str]:
    """
    The environment for such a command, in any directory, with no settings of duly but *more*.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    home = str(Path(duly.__file__).resolve().parent.parent)
    paths = [home, *(path for path in clean.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return clean | {"PYTHONPATH": os.pathsep.join(paths)} | more


@dataclass
class Child:
    """
    A running program.  Its standard input is the tether: it closes when this process ends, however that ends.
    """

    program: Program
    process: subprocess.Popen[bytes]
    started_s: float = field(default_factory=time.monotonic)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def start(cls, program: Program, line: Callable[[str], None] | None = None) -> Child:
        """
        Start *program*; *line* is called with each line it writes, None leaves its output where ours goes.
        """
        # A process group of its own: Ctrl-C is for us, and we decide what it means for children.
        process = subprocess.Popen(  # noqa: ASYNC220  # as quick as asyncio's, and reaped without its watcher
            program.command,
            stdin=subprocess.PIPE,
            stdout=None if line is None else subprocess.PIPE,
            stderr=None if line is None else subprocess.STDOUT,
            env=None if program.env is None else dict(program.env),
            cwd=program.cwd,
            process_group=0,
        )
        child = cls(program, process)
        if line is not None:
            child._tasks.append(asyncio.create_task(child._read(line)))
        return child

    @property
    def pid(self) -> int:
        """
        Its process id.
        """
        return self.process.pid

    @property
    def code(self) -> int | None:
        """
        How it ended, negative for a signal; None while it runs.
        """
        return self.process.poll()

    async def _read(self, line: Callable[[str], None]) -> None:
        assert self.process.stdout is not None  # noqa: S101  # `start` asked for it
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        pipe = self.process.stdout
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while True:
                try:
                    data = await reader.readuntil(b"\n")
                except asyncio.IncompleteReadError as error:
                    data = error.partial
                    if not data:
                        return
                except asyncio.LimitOverrunError as error:
                    data = await reader.readexactly(error.consumed)
                line(data.decode(errors="replace").rstrip("\r\n"))
        finally:
            transport.close()

    def send(self, number: signal.Signals) -> None:
        """
        Send a signal, unless it has ended.
        """
        if self.code is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def wait(self, within_s: float | None = None) -> int | None:
        """
        How it ended, once it has; None if it goes on for longer than *within_s*.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        while self.code is None:
            if deadline is not None and time.monotonic() >= deadline:
                return None
            await asyncio.sleep(0.02)
        return self.code

    async def close(self) -> None:
        """
        Make sure that it has ended, and hear its last lines.
        """
        self.send(signal.SIGKILL)
        await self.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        if self._tasks:
            # Something that it started may hold the pipe open: its last lines are not waited for long.
            _, late = await asyncio.wait(self._tasks, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()


async def stop_all(children: Sequence[Child], within_s: float) -> None:
    """
    Ask children to end, kill those that do not within *within_s*, and tidy up after all.
    """
    for child in children:
        child.send(signal.SIGTERM)
    deadline = time.monotonic() + within_s
    for child in children:
        await child.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        await child.close()
