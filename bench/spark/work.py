"""
Batch handlers: how many jobs a second go from ready to an outcome of their own, through Spark.

    python bench/spark/work.py --jobs 200000 --json bench/spark/work.json

One Valkey with an append-only file synced each second and events on; Spark on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from duly import Duly
from duly.bench.figure import Figure
from duly.bench.report import table, write
from duly.newjob import new_job
from duly.spark import session
from duly.spark.work.driver import work
from duly.store import Finish, Want

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL = 20_000
PAD = "x" * 79  #: makes the payload about 100 bytes


async def measure(spark: SparkSession, jobs: int, rows: int) -> float:
    """
    Jobs a second with an outcome each: one in a hundred fails and is tried again later.
    """
    with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as data:
        app = Duly(namespace="bench", data=data, durability="everysec")

        @app.batch_handler("score", max_rows=rows)
        def score(batch: DataFrame) -> DataFrame:
            n = F.get_json_object("payload", "$.n").cast("int")
            return batch.select(
                "id",
                F.when(n % 100 == 0, "retry").otherwise("ok").alias("outcome"),
                F.struct((n * 2).alias("twice")).alias("result"),
            )

        async with app:
            one = score.job
            await app.enqueue_many(one({"n": n, "pad": PAD}).options(id=f"j{n}") for n in range(jobs))
            views = await app.views()
            stop = asyncio.Event()
            begun = time.monotonic()
            driver = asyncio.create_task(work(app, spark, stop=stop))
            while not driver.done():
                [topic] = (await views.stats()).topics
                if topic.counts["ready"] + topic.counts["running"] == 0:
                    break
                await asyncio.sleep(0.05)
            seconds = time.monotonic() - begun
            stop.set()
            await driver
    return jobs / seconds


async def bare(jobs: int) -> float:
    """
    Jobs a second that one process claims and acks by the store alone: no Spark, no function, no waiting.
    """
    with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as data:
        async with Duly(namespace="bench", data=data, durability="everysec") as app:
            store = await app.store()
            payload = {"n": 1, "pad": PAD}
            await app.enqueue_many(
                new_job("score", payload, app.settings.limits).options(id=f"j{n}") for n in range(jobs)
            )
            begun = time.monotonic()
            for number in itertools.count(1):
                leases = (
                    await store.claim(0, [Want("score", 500, 60_000)], worker="w", number=number)
                ).leases
                if not leases:
                    break
                await store.finish("ack", 0, [Finish(lease, 0, (b'{"twice":2}',)) for lease in leases])
            return jobs / (time.monotonic() - begun)


def main() -> None:
    """
    Print the median of some runs beside the goal, and write it down.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=20_000, help="in one batch")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    logging.basicConfig(level="WARNING")
    spark = session(asked.master)
    asyncio.run(measure(spark, 2 * asked.rows, asked.rows))  # the first batches compile
    rates = [asyncio.run(measure(spark, asked.jobs, asked.rows)) for _ in range(asked.runs)]
    figures = [
        Figure("claim and ack alone, one process", asyncio.run(bare(asked.jobs)), "jobs/s", at_least=True),
        Figure(
            "batch handlers, an outcome for each job", statistics.median(rates), "jobs/s", GOAL, at_least=True
        ),
    ]
    spark.stop()
    print(table(figures))
    if asked.json is not None:
        write(asked.json, figures, master=asked.master, jobs=asked.jobs, rows=asked.rows)


if __name__ == "__main__":
    main()
