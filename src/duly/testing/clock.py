"""
A clock that stands still until a test moves it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from duly.durations import Seconds, parse_duration
from duly.errors import UsageError
from duly.testing.frozen import frozen_ms, move_frozen

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class TestClock:
    """
    Milliseconds that only `advance` and `advance_to` change; for namespaces created with ``clock="test"``.

    Where freezegun or time-machine sets the time of the test, that is the time of this clock, too, and they
    move it together.  A clock that was made with a time of its own keeps to that.
    """

    __test__ = False  # not a test class, whatever its name suggests to pytest

    def __init__(self, now_ms: int | None = None) -> None:
        self._follows = now_ms is None
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms

    def __call__(self) -> int:
        """
        The time.
        """
        return self.now_ms

    def __repr__(self) -> str:
        return f"<TestClock {self.now.isoformat(timespec='milliseconds')}>"

    @property
    def now_ms(self) -> int:
        """
        The time in milliseconds since 1970.
        """
        frozen = frozen_ms() if self._follows else None
        return self._now_ms if frozen is None else frozen

    @property
    def now(self) -> datetime:
        """
        The time as a datetime in UTC.
        """
        return _EPOCH + self.now_ms * _MS

    def advance(
        self,
        by: Seconds | None = None,
        /,
        *,
        ms: int = 0,
        s: float = 0,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> int:
        """
        Move on, rounded up to the millisecond, and return the new time in milliseconds.

        Raises:
            UsageError: Time does not go back, or *by* is no length of time.
        """
        if by is not None and not isinstance(by, timedelta):
            by = timedelta(milliseconds=parse_duration(by, "advance"))
        step = (by or timedelta()) + timedelta(
            milliseconds=ms, seconds=s + seconds, minutes=minutes, hours=hours, days=days
        )
        if step < timedelta():
            msg = f"the clock cannot go back by {-step}"
            raise UsageError(msg)
        if self._follows and frozen_ms() is not None:
            move_frozen(step)
        else:
            self._now_ms -= -step // _MS
        return self.now_ms

    def advance_to(self, moment: datetime) -> int:
        """
        Move on to *moment*, rounded up to the millisecond, and return the new time in milliseconds.

        Raises:
            UsageError: It is past, or has no time zone.
        """
        if moment.tzinfo is None:
            msg = f"{moment!r} has no time zone; say datetime(…, tzinfo=UTC) or .astimezone()"
            raise UsageError(msg)
        if moment < self.now:
            msg = f"the clock stands at {self.now.isoformat()} and cannot go back to {moment.isoformat()}"
            raise UsageError(msg)
        return self.advance(moment - self.now)
