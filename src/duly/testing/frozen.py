"""
Time that a test has frozen, or travels in: with freezegun or with time-machine.

Neither is imported here; a test that uses one has done so.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_APART_S = 86_400.0  #: a frozen monotonic clock counts from 1970, a real one from the start of the machine


def frozen_ms() -> int | None:
    """
    Return the time that the test has set, in milliseconds since 1970, rounded up; None if it has set none.

    Looks at the library instead of asking `time.time`, which freezegun answers by the module that asks.
    """
    if traveller := _traveller():
        now_ns: int = traveller.time_ns()
        return -(-now_ns // 1_000_000)
    if factory := _factory():
        # freezegun adds its `tz_offset` to what `datetime.now(UTC)` says, too, and that is what tests ask.
        offset: timedelta = sys.modules["freezegun.api"].tz_offsets[-1]
        return -((_EPOCH - _moment(factory).replace(tzinfo=UTC) - offset) // _MS)
    return None


def move_frozen(step: timedelta) -> None:
    """
    Move the time that the test has set by *step*.
    """
    if traveller := _traveller():
        traveller.shift(step)
    elif step and (factory := _factory()):
        factory.move_to(_moment(factory) + step)


def stands_still(loop: asyncio.AbstractEventLoop) -> bool:
    """
    Return whether the time of an event loop is frozen, too: nothing that waits on it for a while ever ends.
    """
    api: Any = sys.modules.get("freezegun.api")
    return _factory() is not None and abs(loop.time() - api.real_monotonic()) > _APART_S


def _traveller() -> Any:
    library: Any = sys.modules.get("time_machine")
    # Before version 3 it had another name.
    stack = getattr(library, "traveller_stack", None) or getattr(library, "coordinates_stack", None)
    return stack[-1] if stack else None


def _moment(factory: Any) -> datetime:
    # One that ticks works its time out, and one that steps takes a step when it is asked.
    found: datetime = factory() if hasattr(factory, "start") else factory.time_to_freeze
    return found


def _factory() -> Any:
    api: Any = sys.modules.get("freezegun.api")
    factories = getattr(api, "freeze_factories", None)
    return factories[-1] if factories else None
