"""
The time that a record's due times count from: that of the server whose clock will start the jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import OutcomeUnknown, StoreUnavailable

if TYPE_CHECKING:
    from duly.store import Store

log = logging.getLogger("duly.record")

LOOK_S = 30.0  #: how long what was seen of the server's clock is good enough
AWAY_S = 5.0  #: how long a server that did not answer is not asked again
ANSWERS_WITHIN_S = 1.0


class Moment(NamedTuple):
    """
    Whole milliseconds since 1970: rounded down to decide what is due, up to start counting a delay.
    """

    floor_ms: int
    ceil_ms: int
    far_ms: int = 2**62  #: what is due later than this waits in the record


class Clock:
    """
    The server's clock as last seen, told onwards by the steady clock of this machine.

    Until the server has been seen, and while it is away from the beginning, this machine's own time counts.
    """

    def __init__(self, store: Store, horizon_ms: int = 2**60) -> None:
        self._horizon_ms = horizon_ms
        self._store = store
        self._ahead_us: int | None = None  #: of the server's clock before this machine's steady one
        self._again_s = 0.0

    def now(self) -> Moment:
        """
        What time it is.
        """
        given = self._store.now_ms(0)
        if given:
            return Moment(given, given, given + self._horizon_ms)  # the clock of a test
        if self._ahead_us is None:
            us = time.time_ns() // 1_000
        else:
            us = time.monotonic_ns() // 1_000 + self._ahead_us
        return Moment(us // 1_000, -(-us // 1_000), us // 1_000 + self._horizon_ms)

    async def look(self) -> None:
        """
        Ask the server, unless it was asked a moment ago.  One that is away is not waited for.
        """
        if time.monotonic() < self._again_s:
            return
        self._again_s = time.monotonic() + AWAY_S
        began = time.monotonic_ns()
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                seconds, micros = await self._store.link.call("TIME")
        except (StoreUnavailable, OutcomeUnknown, TimeoutError) as error:
            log.debug("the clock goes on by itself: %s", error)
            return
        # Its answer was made at some time in between; taken for the earlier end, a delay is never too short.
        self._ahead_us = int(seconds) * 1_000_000 + int(micros) - began // 1_000
        self._again_s = time.monotonic() + LOOK_S
