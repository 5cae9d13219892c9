"""
``duly pipeline history``: events of the queue into a table, once or for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyarrow.fs import FileType
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it

from duly.connection import Link
from duly.durations import parse_duration
from duly.errors import DulyError, UsageError
from duly.feed import Feed
from duly.spark.events.places import write_places
from duly.spark.events.shards import Shards
from duly.spark.filesystem import filesystem
from duly.spark.history.batch import Batches
from duly.spark.history.files import PARTITIONED_BY
from duly.spark.history.reading import is_parquet
from duly.spark.history.table import HistoryTable
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from duly.durations import Seconds
    from duly.events import Offset
    from duly.spark.events.places import Places

log = logging.getLogger("duly.spark")

STARTS = 5  #: how often a stream is started before it is given up
SLOW_START = "Python worker failed to connect back"
TRIM_CALLS = 1_000  #: what one batch may clear away after itself; the rest is left to the pruner


class HistoryStopped(DulyError):
    """
    The stream ended by an error; the table holds every batch that was committed before it.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryOptions:
    """
    What to read, where to write.
    """

    url: str
    table: str
    namespace: str = "duly"
    checkpoint: str = ""  #: empty: a folder inside the table that readers of tables pass over
    consumer: str = "history"  #: the name under which trimming waits for this table
    format: Literal["delta", "parquet"] = "delta"
    max_rows: int = 1_000_000  #: of one batch
    every: Seconds = 10  #: between batches, unless it runs once
    fail_on_data_loss: bool = True

    @property
    def checkpoint_path(self) -> str:
        """
        Where Spark notes what it plans.
        """
        return self.checkpoint or f"{self.table.rstrip('/')}/_checkpoint"


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """
    What a run did.
    """

    rows: int
    batches: int


def history(
    spark: SparkSession,
    options: HistoryOptions,
    *,
    once: bool = True,
    tell: Callable[[int], None] = lambda _: None,
) -> HistoryRun:
    """
    Bring the table up to date and return, or with *once* false keep it so until interrupted.

    *tell* hears how many events the table got, after each batch.

    Raises:
        UsageError: The table or the checkpoint is not what it should be.
        HistoryStopped: Events are lost, or Spark gave up.
    """
    if options.format == "parquet":
        return _parquet(spark, options, once=once)
    table = HistoryTable(options.table)
    start = table.create(options.namespace).places
    # Registered before anything is read, so that trimming waits from now on.
    settle(options, start)
    batches = Batches(
        table,
        options.namespace,
        options.checkpoint_path,
        lambda places: settle(options, places),
        tell,
        strict=options.fail_on_data_loss,
    )
    writer = (
        _stream(spark, options, start, packed=True)
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", options.checkpoint_path)
    )
    run_stream(_triggered(writer, options, once=once).start)
    return HistoryRun(batches.rows, batches.batches)


def behind(options: HistoryOptions) -> dict[int, int]:
    """
    How many events each shard has that the table does not; changes nothing.
    """
    table = HistoryTable(options.table)
    places = table.progress().places if table.exists() else {}
    found = {}
    with Shards(options.url, options.namespace) as shards:
        for shard in range(shards.count()):
            last, place = shards.last(shard), places.get(shard)
            known = place.rows if place and last and place.epoch == last.offset.epoch else 0
            found[shard] = max(0, last.rows_total - known) if last else 0
    return found


def _stream(
    spark: SparkSession, options: HistoryOptions, start: Places, *, packed: bool = False
) -> DataFrame:
    reader = (
        spark.readStream.format("duly.events")
        .option("url", options.url)
        .option("namespace", options.namespace)
        .option("maxRows", options.max_rows)
        .option("failOnDataLoss", options.fail_on_data_loss)
        .option("packed", packed)
    )
    if start:
        # For a checkpoint that got lost: what the table holds may be trimmed long since.
        reader = reader.option("startingOffsets", json.dumps(write_places(start)))
    return reader.load()


def _triggered(writer: DataStreamWriter, options: HistoryOptions, *, once: bool) -> DataStreamWriter:
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{parse_duration(options.every, 'every')} milliseconds")


def run_stream(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """
    Run a stream to its end; one whose processes did not come up in time is started again.
    """
    for attempt in range(1, STARTS + 1):
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if attempt == STARTS or SLOW_START not in str(error):
                raise stopped(error) from error
            log.warning("this machine is too busy to start a process within Spark's 10 s; trying again")
        else:
            break
        finally:
            query.stop()
    return query


def stopped(error: Exception) -> DulyError:
    """
    What ended a stream, in the words of whoever raised it inside of Spark.
    """
    text = str(error)
    ours = re.search(r"(?:^|\s)duly\.[\w.]+\.(\w+): (.+)", text)
    if ours:
        kind, said = ours.groups()
        return UsageError(said) if kind == "UsageError" else HistoryStopped(said)
    last = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]*(Error|Exception): ", line)]
    return HistoryStopped(f"Spark ended the stream: {last[-1] if last else text.splitlines()[0]}")


def settle(options: HistoryOptions, places: Places) -> None:
    """
    Tell the queue what the table holds for good, and clear away what every consumer has.
    """
    offsets = {shard: place.offset for shard, place in places.items()}
    # In a thread of its own: in a notebook, this one has a loop that runs already.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(_settle(options, offsets))).result()


async def _settle(options: HistoryOptions, offsets: dict[int, Offset]) -> None:
    with Shards(options.url, options.namespace) as shards:
        count = shards.count()
    link = Link(options.url)
    try:
        feed = Feed(Store(link, namespace=options.namespace, shards=count))
        for shard in range(count):
            known = await feed.consumers(shard)
            if shard not in offsets and options.consumer in known:
                continue
            await feed.commit(options.consumer, shard, offsets.get(shard))
            for _ in range(TRIM_CALLS):
                if not await feed.trim(shard):
                    break
    finally:
        await link.aclose()


def _parquet(spark: SparkSession, options: HistoryOptions, *, once: bool) -> HistoryRun:
    """
    Let Spark's own file sink write: once, as long as its checkpoint lives.
    """
    fs, root = filesystem(options.checkpoint_path)
    if is_parquet(options.table) and fs.get_file_info(f"{root}/offsets").type is not FileType.Directory:
        # Spark's sink would take a new checkpoint's first batches for ones that it has, and drop them.
        raise UsageError(
            f"the files in {options.table} belong to a checkpoint that is not at {options.checkpoint_path}: "
            "bring it back, or write to another folder; only --format delta survives its loss"
        )
    settle(options, {})
    writer = (
        _stream(spark, options, {})
        .withColumn("date", F.to_date(F.timestamp_millis("at_ms")))
        .writeStream.format("parquet")
        .partitionBy(*PARTITIONED_BY)
        .option("path", options.table)
        .option("checkpointLocation", options.checkpoint_path)
    )
    progress = run_stream(_triggered(writer, options, once=once).start).recentProgress
    return HistoryRun(sum(batch["numInputRows"] for batch in progress), len(progress))
