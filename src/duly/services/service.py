"""
A background duty: does one bounded step when asked, and is run again and again by one loop for all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from duly.errors import DulyError
from duly.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("duly.services")

CANCEL_S = 0.5


class Service(Protocol):
    """
    One background duty.
    """

    every_s: float

    async def run_once(self) -> int:
        """
        Do one bounded step and return the number of jobs touched.
        """
        ...


class Pulse:
    """
    When each loop last made progress.  Liveness is this, not whether the server answers PING.
    """

    def __init__(self) -> None:
        self._beats: dict[str, float] = {}

    def beat(self, loop: str) -> None:
        """
        Say that *loop* came round.
        """
        self._beats[loop] = time.monotonic()

    def forget(self, loop: str) -> None:
        """
        Watch *loop* no longer: it ended on purpose.
        """
        self._beats.pop(loop, None)

    def stalled(self, limit_s: float) -> list[str]:
        """
        The loops that made no progress for *limit_s*.
        """
        oldest = time.monotonic() - limit_s
        return [loop for loop, beat in list(self._beats.items()) if beat < oldest]

    def ages(self) -> dict[str, float]:
        """
        How long each loop has made no progress, in seconds.
        """
        now = time.monotonic()
        return {loop: now - beat for loop, beat in list(self._beats.items())}

    @property
    def age_s(self) -> float:
        """
        How long the slowest loop has made no progress.
        """
        return time.monotonic() - min(self._beats.values(), default=time.monotonic())


class Watch:
    """
    Looks at a pulse from one loop.

    A process that was suspended made no progress, and neither did whoever looks at it: no loop is stuck for
    that.  So a look that comes much too late begins anew.
    """

    def __init__(self, pulse: Pulse, limit_s: float, every_s: float) -> None:
        """
        Prepare for a look each *every_s*: a loop is stuck that made no progress for *limit_s*.
        """
        self._pulse = pulse
        self._limit_s = limit_s
        self._late_s = limit_s / 2 + every_s
        self._looked_s = self._since_s = time.monotonic()

    def stalled(self) -> list[str]:
        """
        The loops that are stuck, although this one is not.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s > self._late_s:
            self._since_s = now_s
        self._looked_s = now_s
        return self._pulse.stalled(self._limit_s) if now_s - self._since_s >= self._limit_s else []


async def run_forever(service: Service, pulse: Pulse, name: str = "") -> None:
    """
    Run a service until cancelled: survive a store that cannot be reached, with backoff, and say so.

    Any other error ends the loop, and with it the process that depends on it.
    """
    name = name or type(service).__name__.lower()
    pauses = Pauses()
    try:
        while True:
            pulse.beat(name)
            try:
                touched = await service.run_once()
            except DulyError as error:
                log.warning("%s: %s; trying again in %.1f s", name, error, pauses.next_s)
                await pauses.wait()
                continue
            pauses.reset()
            # Where there was work there is likely more.
            await asyncio.sleep(0 if touched else service.every_s)
    finally:
        pulse.forget(name)


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """
    Cancel tasks and wait until they have ended; what they raise is nobody's concern any more.

    Again and again: a library that tidies up its connection may swallow a cancellation on its way.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_S)
    await asyncio.gather(*tasks, return_exceptions=True)
