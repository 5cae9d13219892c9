"""
A far-future job as a row of its table, and as an order to the queue.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from duly.codec import decode_envelope
from duly.errors import UsageError
from duly.job import Lane, moment
from duly.options import CARRIED
from duly.spark.rows import scalar

if TYPE_CHECKING:
    from duly.job import Order
    from duly.spark.packing import Packer

PARTITION = (
    "day"  #: of the due time, in UTC: a pass opens the files of a day or two, whatever the table holds
)
_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
_OWN = {"topic": "string", "id": "string", "due_ms": "long", "payload": "string", "priority": "string"}
_OPTIONS = {option.field: option.kind.sql for option in CARRIED}
#: Columns of the table.  Anybody may append rows who keeps to them.
ROWS = pa.schema({name: _TYPES[sql] for name, sql in (_OWN | _OPTIONS | {PARTITION: "string"}).items()})
#: Columns that tables of earlier releases do not have; there they are null.
ADDED = tuple(name for name in _OPTIONS if name not in ("ttr_ms", "max_attempts", "context", "callback"))
#: The same in Spark's words, without the day, which is in the names of folders.
STORED = ", ".join(f"{name} {sql}" for name, sql in (_OWN | _OPTIONS).items())


def row_of(given: dict[str, Any], packer: Packer) -> dict[str, Any]:
    """
    Check a row that is to be put off as one that is sent, and write it as the table has it.

    Raises:
        UsageError: Something about it is wrong; the message says what.
    """
    order = packer.order(given)
    envelope = decode_envelope(order.envelope)
    due_ms = order.due_ms or 0
    return {
        "topic": order.key.topic,
        "id": order.key.id,
        "due_ms": due_ms,
        "payload": order.payload.decode(),
        "priority": "normal" if order.lane is Lane.callback else order.lane.name,
        **{option.field: scalar(option.within(order, envelope)) for option in CARRIED},
        PARTITION: day_of(due_ms),
    }


def order_of(row: dict[str, Any], packer: Packer) -> Order:
    """
    The order that a row of the table stands for.

    Raises:
        UsageError: Somebody else wrote the row, and something about it is wrong.
    """
    due_ms, ttr_ms = row["due_ms"], row["ttr_ms"]
    try:
        due_at = None if due_ms is None else moment(max(due_ms, 1))
        ttr = None if ttr_ms is None else timedelta(milliseconds=ttr_ms)
        return packer.order({**row, "due_at": due_at, "ttr": ttr})
    except (UsageError, OverflowError) as error:
        raise UsageError(f"row with topic {row['topic']!r} and id {row['id']!r}: {error}") from error


def day_of(due_ms: int) -> str:
    """
    The partition of a due time.
    """
    return datetime.fromtimestamp(due_ms // 1000, UTC).strftime("%Y-%m-%d")
