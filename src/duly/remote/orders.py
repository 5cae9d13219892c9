"""
Orders as the service takes them: one JSON object for each, exact to the millisecond.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import decode_envelope
from duly.durations import say_time
from duly.job import Lane
from duly.options import IN_ENVELOPE, IN_RECORD

if TYPE_CHECKING:
    from duly.job import Order

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encoder = msgspec.json.Encoder()

_KEPT = (*IN_RECORD, *IN_ENVELOPE)


def body_of(order: Order) -> bytes:
    """
    An order on one line; what is not said is left to the service.
    """
    said: dict[str, Any] = {
        "id": order.key.id,
        # A payload that came as text may have line ends between its values; inside of one are none.
        "payload": msgspec.Raw(order.payload.replace(b"\n", b" ") or b"null"),
        "delay": span(order.delay_ms),
        "due_at": time_text(order.due_ms),
        "priority": None if order.lane in (Lane.normal, Lane.callback) else order.lane.name,
        "on_conflict": None if order.on_conflict == "keep" else order.on_conflict,
    }
    envelope = decode_envelope(order.envelope)
    for option in _KEPT if order.envelope else IN_RECORD:
        said[option.name] = option.write(option.within(order, envelope))
    return _encoder.encode({name: value for name, value in said.items() if value is not None})


def span(ms: int | None) -> str | None:
    """
    A length of time, as text: a fraction of seconds would not be exact.
    """
    return None if ms is None else f"{ms}ms"


def time_text(ms: int | None) -> str | None:
    """
    A moment in RFC 3339.
    """
    return None if ms is None else say_time(_EPOCH + timedelta(milliseconds=ms))
