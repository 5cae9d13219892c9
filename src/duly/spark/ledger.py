"""
The ledger: what was accepted in each hour, and what became of it, to the job.

A *life* of a job begins when it is accepted (enqueued, run again by hand, or replaced after its end) and ends
in one of three ways.  Reschedules, retries and replacements before the end belong to the same life.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.extras import needed
from duly.spark.program import run

with needed("duly.spark.ledger"):
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it
    from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENDED = ("succeeded", "dead", "cancelled")
ENDINGS = {"acked": "succeeded", "buried": "dead", "cancelled": "cancelled"}
#: Verbs that say nothing of what becomes of a job: of topics, and what the auditor found.
ASIDE = ("paused", "resumed", "mended", "quarantined")

COUNTS = ("accepted", "earlier", *ENDED, "open", "difference")
LEDGER = StructType(
    [
        StructField("hour", TimestampType()),  #: in which it was accepted
        StructField("topic", StringType()),
        *(StructField(name, LongType()) for name in COUNTS),
    ]
)


def ledger(history: DataFrame) -> DataFrame:
    """
    Balance the lives of all jobs by hour and topic.

    `earlier` are lives that began before the history did.  `difference` is what is accepted, or from earlier,
    and neither ended once nor is open: 0, or something is wrong.
    """
    return history.transform(lives).transform(by_hour)


def lives(history: DataFrame) -> DataFrame:
    """
    One row for each life: when it began, how often it ended in which way, whether it is open.
    """
    return (
        history.transform(with_lives)
        .groupBy("topic", "id", "life")
        .agg(
            F.min("at_ms").alias("at_ms"),
            *(F.sum((F.col("verb") == verb).cast("long")).alias(state) for verb, state in ENDINGS.items()),
            F.max("last").alias("last"),
            F.max((F.col("verb") == "pruned").cast("long")).alias("pruned"),
            F.count_if(F.col("verb") != "pruned").alias("told"),
        )
        # Of a job that had ended before the history began, only that it was forgotten.
        .where((F.col("life") > 0) | (F.col("told") > 0))
    )


def with_lives(history: DataFrame) -> DataFrame:
    """
    The events of jobs, with the number of the `life` that each belongs to, and whether it is the `last`.
    """
    began = history.groupBy("shard", "epoch").agg(F.min("at_ms").alias("began_ms"))
    story = Window.partitionBy("topic", "id").orderBy("began_ms", "counter", "row")
    so_far = story.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = F.lag("state").over(story)
    begins = F.col("verb").isin("enqueued", "requeued") | (
        (F.col("verb") == "replaced") & (before.isNull() | before.isin(*ENDED))
    )
    return (
        history.where(~F.col("verb").isin(*ASIDE))
        .join(F.broadcast(began), on=["shard", "epoch"], how="inner")
        .withColumn("begins", begins.cast("long"))
        .withColumn("life", F.sum("begins").over(so_far))
        .withColumn("last", F.lead("verb").over(story).isNull())
    )


def by_hour(lives: DataFrame) -> DataFrame:
    """
    Count lives by the hour in which they began.
    """
    ended = F.col("succeeded") + F.col("dead") + F.col("cancelled")
    still_open = F.col("last") & (ended == 0) & (F.col("pruned") == 0)
    sums = {
        "accepted": F.count_if(F.col("life") > 0),
        "earlier": F.count_if(F.col("life") == 0),
        **{state: F.sum(state) for state in ENDED},
        "open": F.count_if(still_open),
    }
    return (
        lives.groupBy(F.date_trunc("hour", F.timestamp_millis("at_ms")).alias("hour"), "topic")
        .agg(*(value.alias(name) for name, value in sums.items()))
        .withColumn(
            "difference",
            F.col("accepted")
            + F.col("earlier")
            - F.col("succeeded")
            - F.col("dead")
            - F.col("cancelled")
            - F.col("open"),
        )
        .select(*LEDGER.names)
        .orderBy("hour", "topic")
    )


if __name__ == "__main__":
    run("ledger")
