"""
The supervisor: keeps programs running, starts those again that end, and drains all of them when told to.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from duly.supervise.child import Child

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.supervise.child import Program

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
TURN_S = 0.1
AT_ONCE_S = 10.0  #: how long the giving back of jobs may take
USAGE = 2  #: how a command of ours ends that was called wrongly: it would end so again
SETTLED_S = 10.0  #: a program that ran for so long had started well: the next pause is short again


class Tell(Protocol):
    """
    Takes a line and the name of who said it; an empty name is the supervisor's own.
    """

    def __call__(self, name: str, line: str) -> None:
        """
        Pass it on.
        """


class Supervisor:
    """
    Runs programs until told to stop.  The first `stop` drains, the second ends at once.
    """

    def __init__(self, programs: Sequence[Program], *, tell: Tell, grace_s: float) -> None:
        """
        Prepare: what has not ended *grace_s* after it was told to is killed.
        """
        self._programs = programs
        self._tell = tell
        self._grace_s = grace_s
        self._children: dict[str, Child] = {}
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._gave_up = False

    def stop(self) -> None:
        """
        Drain; called again, do not wait for anything that runs.
        """
        if not self._stop.is_set():
            self._tell("", "draining: no more jobs are claimed; once more ends at once")
            self._stop.set()
        elif not self._now.is_set():
            self._tell("", "ending at once: running jobs are given back")
            self._now.set()
        else:
            return
        for child in self._children.values():
            child.send(signal.SIGTERM)

    async def run(self) -> bool:
        """
        Run all programs until `stop` was called and all have ended.

        Returns:
            Whether they were stopped because one of them was called wrongly.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for program in self._programs:
                    group.create_task(self._keep(program))
        finally:
            for child in self._children.values():
                await child.close()
        return self._gave_up

    async def _keep(self, program: Program) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            child = await Child.start(program, lambda line: self._tell(program.name, line))
            self._children[program.name] = child
            if self._stop.is_set():
                child.send(signal.SIGTERM)  # told while it was being started
            code = await self._ended(child)
            await child.close()
            if self._stop.is_set():
                return
            if time.monotonic() - began_s >= SETTLED_S:
                pause_s = FIRST_PAUSE_S
            if code == USAGE:
                self._give_up(child)
                return
            how = said(code)
            self._tell("", f"{program.name} (pid {child.pid}) {how}; starting it again in {pause_s:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _give_up(self, child: Child) -> None:
        self._tell(
            "", f"{child.program.name} (pid {child.pid}) cannot start: see what it said; ending the others"
        )
        self._gave_up = True
        self._stop.set()
        for other in self._children.values():
            other.send(signal.SIGTERM)

    async def _ended(self, child: Child) -> int | None:
        """
        Wait for the end of a child, which must come within the grace once all are to stop.
        """
        left_s = self._grace_s
        while (code := await child.wait(TURN_S)) is None:
            if self._stop.is_set():
                left_s = min(left_s, AT_ONCE_S) if self._now.is_set() else left_s
                left_s -= TURN_S
            if left_s <= 0:
                self._tell("", f"{child.program.name} (pid {child.pid}) does not end: killing it")
                child.send(signal.SIGKILL)
        return code


def said(code: int | None) -> str:
    """
    How a process ended, in words.
    """
    if code is not None and code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with {code}"
