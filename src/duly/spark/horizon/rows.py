"""
A far-future job as a row of its table, and as an order to the queue.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from duly.codec import decode, encode
from duly.durations import parse_duration
from duly.errors import DulyError, UsageError
from duly.job import check_topic, moment
from duly.newjob import NewJob

if TYPE_CHECKING:
    from duly.job import Order
    from duly.newjob import Limits

PARTITION = (
    "day"  #: of the due time, in UTC: a pass opens the files of a day or two, whatever the table holds
)
NEEDED = ("id", "due_at", "payload")
#: Columns of the table.  Anybody may append rows who keeps to them.
ROWS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("id", pa.string()),
        pa.field("due_ms", pa.int64()),
        pa.field("payload", pa.string()),
        pa.field("priority", pa.string()),
        pa.field("ttr_ms", pa.int64()),
        pa.field("max_attempts", pa.int32()),
        pa.field("context", pa.string()),
        pa.field("callback", pa.string()),
        pa.field(PARTITION, pa.string()),
    ]
)
#: The same in Spark's words, without the day, which is in the names of folders.
STORED = (
    "topic string, id string, due_ms long, payload string, priority string, ttr_ms long, max_attempts int, "
    "context string, callback string"
)


def row_of(given: dict[str, Any], topic: str | None, limits: Limits) -> dict[str, Any]:
    """
    Check a row that is to be put off, and write it as the table has it.

    Raises:
        UsageError: Something about it is wrong; the message says what.
    """
    for name in NEEDED:
        if given.get(name) is None:
            raise UsageError(f"{name} is null")
    payload, context, ttr = given["payload"], given.get("context"), given.get("ttr")
    # Text is JSON already, and only read; anything else becomes JSON.
    value = _read(payload) if isinstance(payload, str) else payload
    job: NewJob[Any] = NewJob(
        check_topic(given.get("topic") or _topic(topic)),
        encode(value, limit=limits.payload),
        id=given["id"],
        due_at=given["due_at"],
        priority="normal" if given.get("priority") is None else given["priority"],
        ttr=None if ttr is None else parse_duration(ttr, "ttr") / 1000,
        max_attempts=given.get("max_attempts"),
        context=_read(context) if isinstance(context, str) else context,
        callback=given.get("callback"),
    )
    order = job.order(limits)
    due_ms = order.due_ms or 0
    return {
        "topic": job.topic,
        "id": job.id,
        "due_ms": due_ms,
        "payload": payload if isinstance(payload, str) else job.payload.decode(),
        "priority": job.priority,
        "ttr_ms": order.ttr_ms or None,
        "max_attempts": job.max_attempts,
        "context": None if job.context is None else msgspec.json.encode(job.context).decode(),
        "callback": job.callback,
        PARTITION: day_of(due_ms),
    }


def order_of(row: dict[str, Any], limits: Limits) -> Order:
    """
    The order that a row of the table stands for.

    Raises:
        UsageError: Somebody else wrote the row, and something about it is wrong.
    """
    due_at, ttr_ms, context = moment(row["due_ms"]), row["ttr_ms"], row["context"]
    try:
        return NewJob(
            check_topic(row["topic"]),
            row["payload"].encode(),
            id=row["id"],
            due_at=due_at,
            priority=row["priority"] or "normal",
            ttr=None if ttr_ms is None else ttr_ms / 1000,
            max_attempts=row["max_attempts"],
            context=None if context is None else _read(context),
            callback=row["callback"],
        ).order(limits)
    except (UsageError, AttributeError, TypeError) as error:
        raise UsageError(f"row with topic {row['topic']!r} and id {row['id']!r}: {error}") from error


def day_of(due_ms: int) -> str:
    """
    The partition of a due time.
    """
    return datetime.fromtimestamp(due_ms // 1000, UTC).strftime("%Y-%m-%d")


def _topic(topic: str | None) -> str:
    if topic is None:
        raise UsageError("no topic: fill the column topic, or say topic=")
    return topic


def _read(text: str) -> Any:
    try:
        return decode(text.encode())
    except DulyError as error:
        raise UsageError(str(error)) from error
