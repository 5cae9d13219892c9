"""
Comparing, as transforms of frames: whatever differs is a suspect, until a live look at both sides proves it.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from duly.job import JobState
from duly.record.rules import Difference, Promised, Queued, judge
from duly.spark.ledger import ENDINGS, with_lives

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

SUSPECTS = StructType(
    [
        StructField("kind", StringType()),  #: of `duly.record.rules.Difference`
        StructField("topic", StringType()),
        StructField("id", StringType()),
        StructField("revision", LongType()),  #: of the record; null if that does not know it
    ]
)
_ARROW = pa.schema([(field.name, pa.string()) for field in SUSPECTS.fields[:3]] + [("revision", pa.int64())])

_PROMISED = tuple(f"promised_{name}" for name in Promised._fields)
_QUEUED = tuple(f"queued_{name}" for name in Queued._fields)


def met(promised: DataFrame, queued: DataFrame) -> DataFrame:
    """
    Every job that either side knows, with what each side says of it.
    """
    ours = promised.toDF("topic", "id", *_PROMISED)
    theirs = queued.toDF("topic", "id", *_QUEUED)
    return ours.join(theirs, on=["topic", "id"], how="full_outer")


def suspects(both: DataFrame) -> DataFrame:
    """
    Of what `met`, what differs, by the rules that are those of all comparisons.
    """
    columns = ("topic", "id", *_PROMISED, *_QUEUED)
    # Nearly all are plainly alike: that is seen without a step into Python.
    return both.select(*columns).where(~_alike()).mapInArrow(_judged, SUSPECTS)


def last_ends(history: DataFrame) -> DataFrame:
    """
    Of each job whose last word is that it ended: that event, and the state it ended in.
    """
    # That an ended job was forgotten says nothing new of it.
    told = history.where(~F.col("verb").isin("pruned", "forgotten"))
    ended = F.col("last") & F.col("verb").isin(*ENDINGS)
    return (
        with_lives(told)
        .where(ended)
        .select(
            *("topic", "id", "revision", "state", "attempt", "crashes", "run_ms", "at_ms", "lateness_ms"),
        )
    )


def duplicates(history: DataFrame) -> DataFrame:
    """
    Jobs that ended more than once in one revision of one life: topic, id, revision, and how often.
    """
    return (
        with_lives(history)
        .where(F.col("verb").isin(*ENDINGS))
        .groupBy("topic", "id", "revision", "life")
        .agg(F.count("*").alias("ends"))
        .where(F.col("ends") > 1)
        .select("topic", "id", "revision", "ends")
    )


def lost_ends(found: DataFrame, history: DataFrame) -> DataFrame:
    """
    Ends in the history of jobs that the record has open, at that revision, and the queue does not have.
    """
    missing = found.where(F.col("kind") == Difference.missing.value).select("topic", "id", "revision")
    return last_ends(history).join(missing, on=["topic", "id", "revision"], how="inner")


def _alike() -> Column:
    """
    Whether a job waits on both sides, with the same revision, time and body; never null.
    """
    same = (
        F.col(f"promised_{name}").eqNullSafe(F.col(f"queued_{name}"))
        for name in ("revision", "due_ms", "body")
    )
    waits = F.col("queued_state").eqNullSafe(int(JobState.scheduled))
    return reduce(and_, same, waits & F.col("promised_ended").eqNullSafe(F.lit(False)))  # noqa: FBT003  # Spark's


def _judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    split = 2 + len(_PROMISED)
    for batch in batches:
        found = []
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            # A side without a revision is a side that does not know the job.
            promised = None if row[2] is None else Promised(*row[2:split])
            queued = None if row[split] is None else Queued(*row[split:])
            if queued is not None:
                queued = queued._replace(state=JobState(queued.state))
            kind = judge(promised, queued)
            if kind is not None:
                found.append((kind.value, row[0], row[1], row[2]))
        if found:
            columns = [list(column) for column in zip(*found, strict=True)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(values, field.type) for values, field in zip(columns, _ARROW, strict=True)],
                schema=_ARROW,
            )
