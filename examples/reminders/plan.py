"""
From customers to reminders, and from what should be to what is wrong.  Pure: DataFrames in, DataFrames out.
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it

DAYS = (30, 7, 1, 0)  #: so many before the end of a subscription there is a reminder


def wanted(customers: DataFrame) -> DataFrame:
    """
    The reminders that should exist: one row for each, in the columns that `schedule` takes.
    """
    return customers.withColumn("days", F.explode(F.lit(list(DAYS)))).select(
        # Made of what it is about, so that the same reminder is the same job, however often this runs.
        F.format_string("customer-%d-%d", "customer", "days").alias("id"),
        (F.timestamp_millis("ends_ms") - F.make_dt_interval("days")).alias("due_at"),
        F.to_json(F.struct("customer", "name", "days")).alias("payload"),
    )


def differences(wanted: DataFrame, queued: DataFrame, now: datetime) -> DataFrame:
    """
    Where the queue is not as it should be: the kind of each difference, and the reminder as it is wanted.
    """
    have = queued.select(
        "id",
        "state",
        "attempts",
        F.col("due_at").alias("queued_at"),
        F.col("payload").alias("queued_payload"),
    )
    waits = F.col("state").isin("scheduled", "ready")
    kind = (
        # A reminder whose time has passed is not sent late: it may have been sent, and forgotten since.
        F.when(F.col("state").isNull(), F.when(F.col("due_at") > F.lit(now), "missing"))
        .when(waits & F.col("due_at").isNull(), "orphan")
        # One that failed waits for its next attempt, on purpose.
        .when(waits & (F.col("attempts") == 0) & (F.col("due_at") != F.col("queued_at")), "due")
        .when(waits & (F.col("payload") != F.col("queued_payload")), "payload")
    )
    both = wanted.join(have, on="id", how="full_outer")
    return both.select(kind.alias("kind"), "id", "due_at", "payload").where("kind is not null")
