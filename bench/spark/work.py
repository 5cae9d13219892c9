"""
Batch handlers: how many jobs a second go from ready to an outcome of their own, through Spark.

    python bench/spark/work.py [--jobs 200000] [--rows 20000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from duly import Duly
from duly.bench.figure import Figure
from duly.bench.report import machine, table
from duly.spark import session
from duly.spark.work.driver import work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL = 20_000
PAD = "x" * 79  #: makes the payload about 100 bytes


async def measure(spark: SparkSession, jobs: int, rows: int) -> float:
    """
    Jobs a second with an outcome each: one in a hundred fails and is tried again later.
    """
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as data:
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
            while True:
                [topic] = (await views.stats()).topics
                if topic.counts["ready"] + topic.counts["running"] == 0:
                    break
                await asyncio.sleep(0.05)
            seconds = time.monotonic() - begun
            stop.set()
            await driver
    return jobs / seconds


def main() -> int:
    """
    Print the median of some runs beside the goal.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=20_000, help="in one batch")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level="WARNING")
    spark = session(given.master)
    asyncio.run(measure(spark, 2 * given.rows, given.rows))  # the first batches compile
    rates = [asyncio.run(measure(spark, given.jobs, given.rows)) for _ in range(given.runs)]
    figures = [Figure("batch handlers", statistics.median(rates), "jobs/s", GOAL)]
    if given.json:
        told = [asdict(figure) | {"kept": figure.kept} for figure in figures]
        print(json.dumps({"machine": machine(), "figures": told}, indent=2))
    else:
        print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
