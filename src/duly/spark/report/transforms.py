"""
From events to the tables of a report.  Pure: a DataFrame in, a DataFrame out, in the shape of `schemas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it

from duly.spark.report import schemas

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ENDS = ("acked", "retried", "buried")
STEPS = 200  #: of the on-time curve
JOB = ("topic", "id", "revision")  #: a job, as it was sent
RUN = (*JOB, "attempt", "crashes")  #: one run of it


def _time(column: str) -> Column:
    return F.timestamp_millis(F.col(column))


def _hour(column: str) -> Column:
    return F.date_trunc("hour", _time(column))


def _shaped(frame: DataFrame, schema: StructType) -> DataFrame:
    return frame.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema))


def _quantiles(column: str) -> list[Column]:
    return [
        *(F.percentile_approx(column, share).alias(f"p{share * 100:.0f}_ms") for share in (0.5, 0.9, 0.99)),
        F.max(column).alias("max_ms"),
    ]


def between(history: DataFrame, start: datetime, end: datetime) -> DataFrame:
    """
    Keep what happened from *start* on and before *end*.
    """
    ms = [int(moment.timestamp() * 1000) for moment in (start, end)]
    return history.where(
        # The day is a folder: whole ones are not even opened.
        F.col("date").between(F.lit(start.date()), F.lit(end.date()))
        & (F.col("at_ms") >= ms[0])
        & (F.col("at_ms") < ms[1])
    )


def first_runs(history: DataFrame) -> DataFrame:
    """
    Keep the ends of first attempts, with the time at which each was due and how late it began.

    Retries are late on purpose.  A run that was lost with its worker is not: what is late by that counts from
    when it was due at first, and not from when it was taken back.
    """
    ends = history.where(
        F.col("verb").isin(*ENDS) & (F.col("attempt") == 1) & F.col("lateness_ms").isNotNull()
    ).withColumn("began_ms", F.col("at_ms") - F.col("run_ms"))
    return (
        # Few jobs crash: they are looked up, and nothing is shuffled for the others.
        ends.join(F.broadcast(_lost_first_runs(history)), on=list(JOB), how="left")
        .withColumn("due_ms", F.coalesce("first_due_ms", F.col("began_ms") - F.col("lateness_ms")))
        .withColumn("lateness_ms", F.coalesce(F.col("began_ms") - F.col("first_due_ms"), "lateness_ms"))
        .drop("began_ms", "first_due_ms")
    )


def _lost_first_runs(history: DataFrame) -> DataFrame:
    """
    Jobs whose first attempt was lost with its worker, once or more often, and when each had been due.
    """
    is_loss = (F.col("verb") == "recovered") & (F.col("reason") == "crashed")
    is_claim = (F.col("verb") == "claimed") & (F.col("crashes") == 0)
    is_snooze = (F.col("verb") == "retried") & (F.col("attempt") == 0)
    lost = history.where(is_loss & (F.col("attempt") == 1)).select(*JOB).distinct()
    return (
        history.where((F.col("attempt") <= 1) & (is_loss | is_claim | is_snooze))
        .join(F.broadcast(lost), on=list(JOB), how="left_semi")
        .groupBy(*JOB)
        .agg(
            F.coalesce(
                F.max_by("due_ms", F.when(is_claim, F.col("at_ms"))),
                # A history that begins in between has no claim: it was due before the run that was lost.
                F.min(F.when(is_loss, F.col("at_ms") - F.col("run_ms"))),
            ).alias("first_due_ms"),
            F.max(F.when(is_loss, F.col("at_ms"))).alias("lost_ms"),
            F.max(F.when(is_snooze, F.col("at_ms"))).alias("snoozed_ms"),
        )
        # What was put off since then, on purpose, has another due time.
        .where(F.col("snoozed_ms").isNull() | (F.col("snoozed_ms") < F.col("lost_ms")))
        .select(*JOB, "first_due_ms")
    )


def on_time(history: DataFrame, slo_ms: int) -> DataFrame:
    """
    How late first runs began, by topic and hour; on time is not more than *slo_ms* late.
    """
    found = (
        first_runs(history)
        .groupBy("topic", _hour("due_ms").alias("hour"))
        .agg(
            F.count("*").alias("jobs"),
            (F.count_if(F.col("lateness_ms") <= slo_ms) / F.count("*")).alias("on_time"),
            *_quantiles("lateness_ms"),
        )
    )
    return _shaped(found, schemas.ON_TIME).orderBy("hour", "topic")


def curve(history: DataFrame) -> DataFrame:
    """
    The lateness within which each share of first runs began, in steps of half a percent.
    """
    shares = [step / STEPS for step in range(STEPS + 1)]
    found = first_runs(history).agg(F.percentile_approx("lateness_ms", shares, 100_000).alias("all"))
    steps = found.select(F.posexplode("all").alias("step", "lateness_ms"))
    return _shaped(steps.withColumn("share", F.col("step") / STEPS), schemas.CURVE).orderBy("share")


def heat(history: DataFrame) -> DataFrame:
    """
    How late first runs began, by day and hour of the day.
    """
    found = (
        first_runs(history)
        .groupBy(F.to_date(_time("due_ms")).alias("date"), F.hour(_time("due_ms")).alias("hour"))
        .agg(F.count("*").alias("jobs"), F.percentile_approx("lateness_ms", 0.99).alias("p99_ms"))
    )
    return _shaped(found, schemas.HEAT).orderBy("date", "hour")


def budget(history: DataFrame, slo_ms: int, goal: float) -> DataFrame:
    """
    How much of the lateness that is allowed was used: *goal* is the share that must be on time.
    """
    found = (
        first_runs(history)
        .groupBy("topic")
        .agg(F.count("*").alias("jobs"), F.count_if(F.col("lateness_ms") > slo_ms).alias("late"))
        .withColumn("on_time", 1 - F.col("late") / F.col("jobs"))
        .withColumn("goal", F.lit(goal))
        .withColumn("used", F.col("late") / F.col("jobs") / F.lit(1 - goal))
    )
    return _shaped(found, schemas.BUDGET).orderBy(F.desc("used"), "topic")


def retries(history: DataFrame) -> DataFrame:
    """
    Runs by topic and hour, and how many of them had to be repeated.
    """
    counts = {"runs": "claimed", "retried": "retried", "crashed": "recovered", "released": "released"}
    found = (
        history.where(F.col("verb").isin(*counts.values()))
        .groupBy("topic", _hour("at_ms").alias("hour"))
        .agg(*(F.count_if(F.col("verb") == verb).alias(name) for name, verb in counts.items()))
    )
    return _shaped(found, schemas.RETRIES).orderBy("hour", "topic")


def crashes(history: DataFrame) -> DataFrame:
    """
    Runs that were lost with their worker, by worker and topic, those of the latest loss first.
    """
    lost = (
        history.where((F.col("verb").isin("recovered", "buried")) & (F.col("reason") == "crashed"))
        # A job that is given up has no attempt more than it had.
        .withColumn("attempt", F.col("attempt") + (F.col("verb") == "buried").cast("long"))
        .select(*RUN, "verb", "at_ms", (F.col("at_ms") - F.col("run_ms")).alias("began_ms"))
    )
    claims = (
        history.where(F.col("verb") == "claimed")
        .join(F.broadcast(lost.select(*JOB).distinct()), on=list(JOB), how="left_semi")
        .groupBy(*RUN)
        .agg(
            F.max_by("worker", "at_ms").alias("worker"),
            F.max_by("due_ms", "at_ms").alias("due_ms"),
            F.min("at_ms").alias("claimed_ms"),
        )
    )
    # The run that was lost counts one crash less than the event that tells of it, and the next run as many.
    before = claims.select(*JOB, "attempt", (F.col("crashes") + 1).alias("crashes"), "worker", "due_ms")
    after = claims.select(*RUN, "claimed_ms")
    found = (
        lost.join(F.broadcast(before), on=list(RUN), how="left")
        .join(F.broadcast(after), on=list(RUN), how="left")
        .withColumn("late_ms", F.col("claimed_ms") - F.coalesce("due_ms", "began_ms"))
        .groupBy(F.coalesce("worker", F.lit("")).alias("worker"), "topic")
        .agg(
            F.timestamp_millis(F.min("at_ms")).alias("first_at"),
            F.timestamp_millis(F.max("at_ms")).alias("last_at"),
            F.count("*").alias("lost"),
            F.count("claimed_ms").alias("restarted"),
            F.count_if(F.col("verb") == "buried").alias("buried"),
            F.percentile_approx("late_ms", 0.5).alias("p50_late_ms"),
            F.max("late_ms").alias("max_late_ms"),
        )
    )
    return _shaped(found, schemas.CRASHES).orderBy(F.desc("last_at"), "worker", "topic")


def failures(history: DataFrame) -> DataFrame:
    """
    What went wrong, most frequent first.
    """
    found = (
        history.where(F.col("verb").isin("retried", "buried"))
        .groupBy("topic", F.col("reason").alias("signature"))
        .agg(
            F.count_if(F.col("verb") == "retried").alias("retried"),
            F.count_if(F.col("verb") == "buried").alias("buried"),
            F.count_distinct("id").alias("jobs"),
            F.timestamp_millis(F.min("at_ms")).alias("first_at"),
            F.timestamp_millis(F.max("at_ms")).alias("last_at"),
            F.max_by("id", "at_ms").alias("example"),
        )
    )
    shaped = _shaped(found, schemas.FAILURES)
    return shaped.orderBy(F.desc(F.col("retried") + F.col("buried")), "topic", "signature")


def run_times(history: DataFrame) -> DataFrame:
    """
    How long runs took that ended with an outcome.
    """
    found = (
        history.where(F.col("verb").isin(*ENDS))
        .groupBy("topic")
        .agg(F.count("*").alias("runs"), *_quantiles("run_ms"), (F.sum("run_ms") / 1000).alias("busy_s"))
    )
    return _shaped(found, schemas.RUN_TIMES).orderBy(F.desc("busy_s"), "topic")


def busiest(history: DataFrame) -> DataFrame:
    """
    How much happened in each hour, the busiest first.
    """
    counts = {
        "accepted": F.col("verb").isin("enqueued", "requeued"),
        "started": F.col("verb") == "claimed",
        "ended": F.col("verb").isin("acked", "buried", "cancelled"),
    }
    found = history.groupBy(_hour("at_ms").alias("hour")).agg(
        *(F.count_if(which).alias(name) for name, which in counts.items())
    )
    return _shaped(found, schemas.BUSIEST).orderBy(F.desc("started"), F.desc("accepted"), "hour")
