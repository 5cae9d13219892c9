"""
The columns of jobs, as Spark sees them: those that a scan gives and those that a write takes.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from duly.errors import UsageError
from duly.options import CARRIED, IN_ENVELOPE

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns of a write: their types, and what they mean.
WRITTEN = {
    "id": ("string or integer", "of the job; the same id again is the same job"),
    "due_at": ("timestamp, or string with an offset", "when it runs; due now if past"),
    "payload": ("string of JSON, or struct, map, array", "what its handler is given"),
    "topic": ("string", "which handler runs it; that of option `topic` if null"),
    "priority": ("string", "`high`, `normal` or `low`; normal if null"),
    **{option.name: (option.kind.column, option.meaning) for option in CARRIED},
}
REQUIRED = ("id", "due_at", "payload")  #: never null
OPTIONAL = tuple(name for name in WRITTEN if name not in REQUIRED)

_TYPES: dict[str, DataType] = {"string": StringType(), "int": IntegerType(), "long": LongType()}

#: What becomes of each field of `duly.job.Job` in a scan: the column and its type.  Milliseconds become
#: times, bytes become text, and the envelope becomes the columns that a write takes.
SCANNED: dict[str, tuple[tuple[str, DataType], ...]] = {
    "topic": (("topic", StringType()),),
    "id": (("id", StringType()),),
    "state": (("state", StringType()),),
    "revision": (("revision", LongType()),),
    "priority": (("priority", StringType()),),
    "attempts": (("attempts", IntegerType()),),
    "crashes": (("crashes", IntegerType()),),
    "payload": (("payload", StringType()),),
    "due_ms": (("due_at", TimestampType()),),
    "scheduled_ms": (("scheduled_for", TimestampType()),),
    "created_ms": (("created_at", TimestampType()),),
    "updated_ms": (("updated_at", TimestampType()),),
    "started_ms": (("started_at", TimestampType()),),
    "ended_ms": (("finished_at", TimestampType()),),
    "lateness_ms": (("lateness_ms", LongType()),),
    "worker": (("worker", StringType()),),
    "lease_ms": (("lease_until", TimestampType()),),
    "outcome": (("outcome", StringType()),),
    "result_gone": (("result_gone", BooleanType()),),
    "progress": (("progress", StringType()),),
    "ttr_ms": (("ttr", DoubleType()),),
    "expires_ms": (("expires", TimestampType()),),
    "retain_s": (("retain", LongType()),),
    "max_attempts": (),  # among those of the envelope, below; a scan knows no handlers, but the settings
    "envelope": tuple((option.name, _TYPES[option.kind.sql]) for option in IN_ENVELOPE),
}

JOBS = StructType(
    [
        *(StructField(name, kind) for columns in SCANNED.values() for name, kind in columns),
        StructField("shard", IntegerType()),
    ]
)

#: What is kept of a row that was not accepted.
REJECTS = StructType(
    [
        StructField("topic", StringType()),
        StructField("id", StringType()),
        StructField("reason", StringType()),
        StructField("row", StringType()),
    ]
)


def arrow(schema: StructType) -> pa.Schema:
    """
    The same for Arrow: Spark refuses batches that differ in anything.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # imports pandas

    return to_arrow_schema(schema, timezone="UTC")


def check_columns(schema: StructType, topic: str | None) -> None:
    """
    Insist that a frame has the columns of jobs.

    Raises:
        UsageError: A column is missing, or is none of a job's.
    """
    names = set(schema.fieldNames())
    if missing := [name for name in REQUIRED if name not in names]:
        raise UsageError(f"no column {missing[0]}: a frame of jobs has {', '.join(REQUIRED)}")
    if topic is None and "topic" not in names:
        raise UsageError("no topic: add a column `topic`, or say option topic")
    known = (*REQUIRED, *OPTIONAL)
    for name in sorted(names.difference(known)):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "put it into the payload, or leave it out by select()"
        raise UsageError(f"a job has no column {name}; {hint}")
