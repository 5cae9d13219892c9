"""
The time that a record's due times count from: that of the server whose clock will start the jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import SERVER_ERRORS
from duly.job import PER_MS
from duly.record.absence import Absence

if TYPE_CHECKING:
    from duly.store import Store

log = logging.getLogger("duly.record")

LOOK_S = 1.0  #: how long what was seen of the server's clock is good enough: it may be set meanwhile
OLD_S = 5.0  #: what was seen longer ago is used by nobody while the server is asked
DRIFT_NS = 250_000_000  #: between the clocks of this machine since then: it stood still, or one was set

#: A clock that nobody sets and that goes on while the machine sleeps, where there is one.
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def steady_ns() -> int:
    """
    Nanoseconds since some moment.
    """
    return time.monotonic_ns() if _STEADY is None else time.clock_gettime_ns(_STEADY)


class Moment(NamedTuple):
    """
    Whole milliseconds since 1970: the earliest that it can be at the server, to decide what is due, and the
    latest, to start counting a delay.
    """

    floor_ms: int
    ceil_ms: int
    far_ms: int = 2**62  #: what is due later than this waits in the record
    number: int = 0  #: microseconds since 1970, more than at any moment before: of a change made now


class Clock:
    """
    The server's clock as last seen, told onwards by the steady clock of this machine.

    Until the server has been seen, and while it is away from the beginning, this machine's own time counts.
    """

    def __init__(self, store: Store, horizon_ms: int = 2**60) -> None:
        self.absence = Absence(store)  #: of the server: for all who can do without it
        self._horizon_ms = horizon_ms
        self._store = store
        #: How far the server's clock is ahead of this machine's steady one, at least and at most.
        self._ahead_us: tuple[int, int] | None = None
        self._told_ns = self._wall_ns = 0  #: when the server answered, by both clocks of this machine
        self._number = 0  #: the one told last
        self._asking = asyncio.Lock()

    def now(self) -> Moment:
        """
        What time it is.
        """
        given = self._store.now_ms(0)
        if given:
            # The clock of a test.
            return Moment(given, given, given + self._horizon_ms, self._next(given * PER_MS))
        if self._ahead_us is None:
            least_us = most_us = time.time_ns() // 1_000
        else:
            us = steady_ns() // 1_000
            least_us, most_us = (us + ahead_us for ahead_us in self._ahead_us)
        floor_ms = least_us // 1_000
        return Moment(floor_ms, -(-most_us // 1_000), floor_ms + self._horizon_ms, self._next(least_us))

    def _next(self, us: int) -> int:
        """
        A later number than the last: what is known of the server's clock steps back a little now and then.
        """
        is_back = 0 <= self._number - us < DRIFT_NS // 1_000
        self._number = self._number + 1 if is_back else us
        return self._number

    async def look(self) -> None:
        """
        Ask the server, unless it was asked a moment ago.  One that is away is not waited for.
        """
        if self._age_s() < LOOK_S:
            return
        if self._asking.locked() and self._age_s() < OLD_S:
            return  # somebody asks, and what is known will do
        async with self._asking:
            if self._age_s() >= LOOK_S:
                await self._ask()

    def _age_s(self) -> float:
        """
        How long ago the server answered; for ever where that says nothing any more.
        """
        steady = steady_ns() - self._told_ns
        wall = time.time_ns() - self._wall_ns
        return math.inf if self._ahead_us is None or abs(wall - steady) > DRIFT_NS else steady / 1e9

    async def _ask(self) -> None:
        try:
            await self.absence.ask(self._read)
        except SERVER_ERRORS as error:
            log.debug("the clock goes on by itself: %s", error)

    async def _read(self) -> None:
        began = steady_ns()
        seconds, micros = await self._store.link.call("TIME")
        # Its answer was made some time in between: no delay is too short, and what is due is due there.
        ended, self._wall_ns = steady_ns(), time.time_ns()
        told_us = int(seconds) * 1_000_000 + int(micros)
        self._ahead_us = told_us - -(-ended // 1_000), told_us - began // 1_000
        self._told_ns = ended
