"""
From what is scheduled to what is to come.  Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from duly.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HERD_JOBS = 100  #: fewer in one second are no herd, however slow they are worked off
HERD_S = 5  #: one second's jobs that take longer than that to work off are a herd
MAX_SLICES = 20_000
MINUTE_MS = 60_000

SCHEDULED = StructType([StructField("topic", StringType()), StructField("due_ms", LongType())])
SERVICE = StructType(
    [
        StructField("topic", StringType()),
        StructField("runs", LongType()),
        StructField("mean_run_ms", DoubleType()),
        StructField("rate_per_s", DoubleType()),  #: ended in the busiest minute
    ]
)
FORECAST = StructType(
    [
        StructField("topic", StringType()),
        StructField("slice", TimestampType()),
        StructField("due", LongType()),
        StructField("peak_per_s", LongType()),
        StructField("backlog", LongType()),  #: left over when the slice ends
        StructField("drain_s", DoubleType()),  #: how long that takes
        StructField("slots", LongType()),  #: handlers at work at once, to end the slice without a backlog
        StructField("herd", BooleanType()),
    ]
)

SUMMARY = StructType(
    [
        StructField("topic", StringType()),
        StructField("due", LongType()),
        StructField("busiest", TimestampType()),  #: the slice in which most is due
        StructField("busiest_due", LongType()),
        StructField("max_backlog", LongType()),
        StructField("max_drain_s", DoubleType()),
        StructField("slots", LongType()),
        StructField("herds", LongType()),  #: slices with one
    ]
)


def scheduled_of(history: DataFrame) -> DataFrame:
    """
    What is scheduled according to the history: the last that was told of each job.
    """
    last = F.max_by(F.struct("verb", "state", "due_ms"), F.struct("at_ms", "counter", "row"))
    return (
        history.where(~F.col("verb").isin("paused", "resumed", "mended", "quarantined"))
        .groupBy("topic", "id")
        .agg(last.alias("last"))
        .where((F.col("last.state") == "scheduled") & (F.col("last.verb") != "pruned"))
        .select("topic", F.col("last.due_ms").alias("due_ms"))
    )


def scheduled_in(jobs: DataFrame) -> DataFrame:
    """
    What is scheduled according to a scan of the queue.
    """
    found = jobs.where(F.col("state") == "scheduled")
    return found.select("topic", F.unix_millis("due_at").alias("due_ms"))


def service(history: DataFrame) -> DataFrame:
    """
    How fast each topic was worked off: the mean of a run, and what the busiest minute brought to an end.
    """
    ends = history.where(F.col("verb").isin("acked", "retried", "buried"))
    minutes = ends.groupBy("topic", F.floor(F.col("at_ms") / MINUTE_MS).alias("minute")).agg(
        F.count("*").alias("runs"), F.sum("run_ms").alias("busy_ms")
    )
    return (
        minutes.groupBy("topic")
        .agg(
            F.sum("runs").alias("runs"),
            (F.sum("busy_ms") / F.sum("runs")).alias("mean_run_ms"),
            (F.max("runs") / 60).alias("rate_per_s"),
        )
        .select(*SERVICE.names)
    )


def forecast(
    scheduled: DataFrame,
    service: DataFrame,
    *,
    now_ms: int,
    slice_s: int = 60,
    hours: float = 24,
    rate_per_s: float | None = None,
) -> DataFrame:
    """
    What is due in each slice from now on, what is left over then, and how long that takes.

    What is overdue counts to the first slice.  *rate_per_s* takes the place of the measured rate of every
    topic; without either, a topic has no backlog and no drain time.

    Raises:
        UsageError: That would be too many slices.
    """
    count = int(hours * 3600 // slice_s)
    if not 1 <= count <= MAX_SLICES:
        raise UsageError(
            f"{hours:g} hours in slices of {slice_s} s are {count:,} slices; choose 1 to {MAX_SLICES:,}"
        )
    slice_ms = slice_s * 1000
    due = due_per_slice(scheduled, now_ms=now_ms, slice_ms=slice_ms, count=count)
    rate = F.col("rate_per_s") if rate_per_s is None else F.lit(float(rate_per_s))
    known = due.join(F.broadcast(service), on="topic", how="left").withColumn("rate", rate)
    return (
        known.transform(lambda frame: with_backlog(frame, slice_s))
        .withColumn("drain_s", F.col("backlog") / F.col("rate"))
        .withColumn("slots", F.ceil(F.col("due") * F.col("mean_run_ms") / slice_ms))
        .withColumn(
            "herd",
            (F.col("peak_per_s") >= HERD_JOBS)
            & (F.col("rate").isNull() | (F.col("peak_per_s") > HERD_S * F.col("rate"))),
        )
        .withColumn("slice", F.timestamp_millis(F.lit(now_ms) + F.col("number") * slice_ms))
        .select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in FORECAST))
        .orderBy("topic", "slice")
    )


def due_per_slice(scheduled: DataFrame, *, now_ms: int, slice_ms: int, count: int) -> DataFrame:
    """
    Count what is due in each slice, and in its busiest second; slices with nothing due are there, too.
    """
    late_ms = F.greatest(F.col("due_ms") - F.lit(now_ms), F.lit(0))
    seconds = (
        scheduled.withColumn("number", F.floor(late_ms / slice_ms))
        .where(F.col("number") < count)
        .groupBy("topic", "number", F.floor(late_ms / 1000).alias("second"))
        .agg(F.count("*").alias("jobs"))
    )
    found = seconds.groupBy("topic", "number").agg(
        F.sum("jobs").alias("due"), F.max("jobs").alias("peak_per_s")
    )
    # After the last slice with anything due, what is left only drains: `drain_s` tells how long.
    every = found.groupBy("topic").agg(F.explode(F.sequence(F.lit(0), F.max("number"))).alias("number"))
    return every.join(found, on=["topic", "number"], how="left").fillna(0, ["due", "peak_per_s"])


def with_backlog(frame: DataFrame, slice_s: int) -> DataFrame:
    """
    Carry over what a slice cannot take: the sum so far, above the lowest it ever was.
    """
    so_far = (
        Window.partitionBy("topic")
        .orderBy("number")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    surplus = F.sum(F.col("due") - F.col("rate") * slice_s).over(so_far)
    return (
        frame.withColumn("surplus", surplus)
        .withColumn("lowest", F.least(F.lit(0.0), F.min("surplus").over(so_far)))
        .withColumn("backlog", F.ceil(F.round(F.col("surplus") - F.col("lowest"), 6)))
    )


def summary(forecast: DataFrame) -> DataFrame:
    """
    One row for each topic: the worst that is to come.
    """
    found = forecast.groupBy("topic").agg(
        F.sum("due").alias("due"),
        F.max_by("slice", "due").alias("busiest"),
        F.max("due").alias("busiest_due"),
        F.max("backlog").alias("max_backlog"),
        F.max("drain_s").alias("max_drain_s"),
        F.max("slots").alias("slots"),
        F.count_if("herd").alias("herds"),
    )
    columns = (F.col(field.name).cast(field.dataType).alias(field.name) for field in SUMMARY)
    return found.select(*columns).orderBy(F.desc("due"), "topic")
