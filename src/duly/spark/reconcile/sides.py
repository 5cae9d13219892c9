"""
The two sides of a comparison as rows, with a digest in the place of each body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from duly.job import JobKey
from duly.record.rules import Promised, Queued, digest
from duly.record.sight import sighted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

    from duly.record.mending import SeenRow
    from duly.spark.rows import Row

_KEY = [StructField("topic", StringType()), StructField("id", StringType())]
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


def promised_row(seen: SeenRow) -> Row:
    """
    A row of the record, in the order of `PROMISED`.
    """
    promised = seen.promised
    return (*seen.key, *promised._replace(body=digest(promised.body)))


def queued_row(member: bytes, about: Sequence[bytes], _workers: Mapping[bytes, str], _shard: int) -> Row:
    """
    A job of the queue, in the order of `QUEUED`; *about* is as for `duly.spark.rows.row_of`.
    """
    record, apart, _, _, score, _ = about
    seen = sighted(JobKey.of(member), record, apart, score)
    queued = seen.queued
    return (*seen.key, *queued._replace(body=digest(queued.body), state=int(queued.state)))  # type: ignore[arg-type]
