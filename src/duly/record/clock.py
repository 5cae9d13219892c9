"""
The time that a record's due times count from: that of the server whose clock will start the jobs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from duly.store import Store

LOOK_S = 30.0  #: how long what was seen of the server's clock is good enough


class Moment(NamedTuple):
    """
    Whole milliseconds since 1970: rounded down to decide what is due, up to start counting a delay.
    """

    floor_ms: int
    ceil_ms: int


class Clock:
    """
    The server's clock as last seen, told onwards by the steady clock of this machine.

    Until the server has been seen, and while it is away from the beginning, this machine's own time counts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ahead_us: int | None = None  #: of the server's clock before this machine's steady one
        self._seen_s = 0.0

    def now(self) -> Moment:
        """
        What time it is.
        """
        given = self._store.now_ms(0)
        if given:
            return Moment(given, given)  # the clock of a test
        if self._ahead_us is None:
            us = time.time_ns() // 1_000
        else:
            us = time.monotonic_ns() // 1_000 + self._ahead_us
        return Moment(us // 1_000, -(-us // 1_000))

    async def look(self) -> None:
        """
        Ask the server, unless it was asked a moment ago.

        Raises:
            StoreUnavailable: It does not answer.
        """
        if self._ahead_us is not None and time.monotonic() - self._seen_s < LOOK_S:
            return
        began = time.monotonic_ns()
        seconds, micros = await self._store.link.call("TIME")
        # Its answer was made at some time in between; taken for the earlier end, a delay is never too short.
        self._ahead_us = int(seconds) * 1_000_000 + int(micros) - began // 1_000
        self._seen_s = time.monotonic()
