"""
What can be sent again, and as what, as transforms of frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it

from duly import options
from duly.spark.ledger import ENDED, ENDINGS, with_lives

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

KEY = ("topic", "id")
#: How a job ended, in either source.
TOLD = (
    *(*KEY, "revision", "state", "priority", "attempts", "crashes"),
    *("error", "due_at", "finished_at", "lateness_ms"),
)
#: What only the queue knows.
CARRIED = ("payload", *(option.name for option in options.CARRIED))
ID_CHARS = 180  #: of an old id that are kept in a new one, so that it stays valid


def last_events(history: DataFrame) -> DataFrame:
    """
    The last event of each job, with its times as times; that it was forgotten since is no event of its own.
    """
    told = history.where(~F.col("verb").isin("pruned", "forgotten", "quarantined"))
    return (
        with_lives(told)
        .where("last")
        .select(
            *history.columns,
            F.timestamp_millis("at_ms").alias("at"),
            F.timestamp_millis("due_ms").alias("due_at"),
            F.col("reason").alias("error"),
        )
    )


def with_errors(scan: DataFrame) -> DataFrame:
    """
    Jobs of the queue, with the error that each ended with, if it did.
    """
    kind, message = (F.get_json_object("outcome", f"$.{name}") for name in ("type", "message"))
    error = F.when(F.col("state") != "succeeded", F.concat_ws(": ", kind, message))
    return scan.withColumn("error", error).select(*TOLD, *CARRIED)


def jobs_of_history(last: DataFrame, queued: DataFrame) -> DataFrame:
    """
    Jobs whose last event is an end, with what the queue still has of them.

    A history may be behind: what has a newer revision in the queue, or is open there, is left out.
    """
    told = (
        last.where(F.col("verb").isin(*ENDINGS))
        .withColumn("attempts", F.col("attempt"))
        .withColumn("finished_at", F.col("at"))
        .select(*TOLD)
    )
    held = queued.select(
        *KEY, *(F.col(name).alias(f"held_{name}") for name in ("revision", "state", "error")), *CARRIED
    )
    gone = F.col("held_revision").isNull()
    stands = (F.col("held_revision") == F.col("revision")) & F.col("held_state").isin(*ENDED)
    return (
        told.join(held, on=list(KEY), how="left")
        .where(gone | stands)
        # The history has the first words of an error.
        .withColumn("error", F.coalesce(F.nullif("held_error", F.lit("")), "error"))
        .select(*TOLD, *CARRIED)
    )


def chosen(jobs: DataFrame, query: DataFrame, run: str) -> DataFrame:
    """
    Of *jobs* those that *query* names, each once, but for what this run itself has sent.

    A column `payload` or `due_at` of the query is what the job is sent with.
    """
    own = [name for name in ("payload", "due_at") if name in query.columns]
    wanted = query.select(*KEY, *(F.col(name).alias(f"own_{name}") for name in own)).dropDuplicates([*KEY])
    found = jobs.join(wanted, on=list(KEY), how="inner").where(
        ~F.get_json_object("context", "$.replay").eqNullSafe(run)
    )
    payload = F.coalesce("own_payload", "payload") if "payload" in own else F.col("payload")
    due_at = F.col("own_due_at") if "due_at" in own else F.lit(None).cast("timestamp")
    return found.withColumn("payload", payload).withColumn("send_at", due_at)


def sent(chosen: DataFrame, run: str, now: datetime, *, same_ids: bool) -> DataFrame:
    """
    The rows that are scheduled: due at once unless the query says when, and with their lineage.
    """
    source = F.concat(F.concat_ws("/", *KEY), F.lit("@"), F.col("revision"))
    mark = F.substring(F.sha2(F.concat(F.lit(f"{run} "), source), 256), 1, 12)
    id_ = F.col("id") if same_ids else F.concat(F.substring("id", 1, ID_CHARS), F.lit("~"), mark)
    return chosen.select(
        id_.alias("id"),
        F.coalesce("send_at", F.lit(now)).alias("due_at"),
        "payload",
        "topic",
        "priority",
        *(_with_lineage(source, run).alias(name) if name == "context" else name for name in CARRIED[1:]),
    )


def _with_lineage(source: Column, run: str) -> Column:
    ours = F.to_json(F.struct(source.alias("replayed_from"), F.lit(run).alias("replay")))
    context = F.col("context")
    # Behind what is there: of a key that is said twice the last counts, and the nearest ancestor is the one.
    merged = F.concat(
        F.substring(context, F.lit(1), F.length(context) - 1), F.lit(","), F.substr(ours, F.lit(2))
    )
    return F.when(context.isNull() | (context == "{}"), ours).otherwise(merged)
