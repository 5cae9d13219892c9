"""
The two sides of a comparison as rows, with a digest in the place of each body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from duly.record.mending import compared
from duly.record.rules import Promised, Queued, digest
from duly.records import BASE, HEAD, OPTIONS, options_at, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

    from duly.spark.rows import Row

_KEY = [StructField("topic", StringType()), StructField("id", StringType())]
_LANES = tuple(bytes((lane,)) for lane in range(8))
_KINDS: dict[str, DataType] = {
    "revision": LongType(),
    "ended": BooleanType(),
    "state": IntegerType(),
    "due_ms": LongType(),
    "body": BinaryType(),
    "on_its_way": BooleanType(),
    "began": BooleanType(),
}

#: A job as the record knows it: the fields of `duly.record.rules.Promised`.
PROMISED = StructType([*_KEY, *(StructField(name, _KINDS[name]) for name in Promised._fields)])
#: A job as the queue knows it: the fields of `duly.record.rules.Queued`.
QUEUED = StructType([*_KEY, *(StructField(name, _KINDS[name]) for name in Queued._fields)])


def promised_row(*columns: Any) -> Row:
    """
    A row of the record, in the order of `PROMISED`.
    """
    topic, id_, revision, ended, due_ms, body, on_its_way = compared(*columns)
    return (topic, id_, revision, ended, due_ms, digest(body), on_its_way)


def queued_row(member: bytes, about: Sequence[bytes], _workers: Mapping[bytes, str], _shard: int) -> Row:
    """
    A job of the queue, in the order of `QUEUED`: `duly.record.sight.sighted`, without values in between.

    *about* is as for `duly.spark.rows.row_of`.
    """
    record, apart, _, _, score, _ = about
    mark = record[0]
    began, due_ms = False, 0
    if mark & 64:
        _, attempts, crashes, *_, due_ms, revision, _ = HEAD.unpack_from(record)
        began = bool(attempts or crashes)
    else:
        _, revision, _ = BASE.unpack_from(record)
    # Options and body follow each other, unless the body stands apart.
    at, body_at = options_at(record)
    if body_at - at > OPTIONS.size:
        found = read(record)
        rest = found.options + (apart if found.apart else found.body)
    else:
        rest = record[at:] if mark < 128 else record[at:body_at] + apart
    topic, _, id_ = member.decode().partition("/")
    due_ms = int(float(score)) if score else due_ms
    return (topic, id_, revision, mark & 7, due_ms, digest(_LANES[mark >> 3 & 3] + rest), began)
