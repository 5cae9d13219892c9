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

if TYPE_CHECKING:
    from duly.job import Order

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encoder = msgspec.json.Encoder()


class JobBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    A job to be; what is not said is left to the service.
    """

    id: str
    payload: msgspec.Raw
    delay: str | None = None
    due_at: str | None = None
    expires: str | None = None
    ttr: str | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    backoff: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    priority: str = "normal"
    on_conflict: str = "keep"
    retain: str | None = None
    callback: str | None = None
    reply_to: str | None = None


def body_of(order: Order) -> bytes:
    """
    An order on one line.
    """
    envelope = decode_envelope(order.envelope)
    return _encoder.encode(
        JobBody(
            id=order.key.id,
            # A payload that came as text may have line ends between its values; inside of one are none.
            payload=msgspec.Raw(order.payload.replace(b"\n", b" ") or b"null"),
            delay=span(order.delay_ms),
            due_at=time_text(order.due_ms),
            expires=time_text(order.expires_ms or None),
            ttr=span(order.ttr_ms or None),
            max_attempts=envelope.max_attempts,
            max_crashes=order.max_crashes or None,
            backoff=envelope.backoff,
            context=envelope.context,
            priority="normal" if order.lane is Lane.callback else order.lane.name,
            on_conflict=order.on_conflict,
            retain=None if order.retain_s is None else f"{order.retain_s}s",
            callback=envelope.callback,
            reply_to=envelope.reply_to,
        )
    )


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
