"""
Schedule and scan with Spark, measured, with plain redis-py on the same machine beside them.

    python bench/spark/schedule.py --rows 1000000 --json bench/spark/schedule.json

One Valkey with an append-only file synced each second and events on, Spark on local[2].
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import redis
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from duly.bench.figure import Figure
from duly.bench.report import table, write
from duly.embedded.server import EmbeddedServer
from duly.spark import session
from duly.spark.schedule import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

GOAL = 60_000
WARM = 20_000


def reminders(spark: SparkSession, rows: int, folder: Path) -> DataFrame:
    """
    A table as users have it: an id, a time within three months, about 90 bytes of JSON.
    """
    spark.range(rows, numPartitions=8).select(
        F.format_string("customer-%d", "id").alias("id"),
        F.timestamp_millis(F.lit(4_102_444_800_000) + F.col("id") * 7).alias("due_at"),
        F.format_string(
            '{"customer":%d,"template":"reminder","locale":"de","text":"Please remember this"}', "id"
        ).alias("payload"),
    ).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = work()
    return time.perf_counter() - began, answer


def plain(raw: redis.Redis, folder: Path) -> int:
    """
    What one would write by hand: a hash, a sorted set, pipelines of 500; no checks, no events, no replays.
    """
    sent = 0
    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(500):
            pipe = raw.pipeline(transaction=False)
            columns = (batch.column(name).to_pylist() for name in ("id", "due_at", "payload"))
            for id_, due_at, payload in zip(*columns, strict=True):
                pipe.hset("plain:jobs", id_, payload)
                pipe.zadd("plain:due", {id_: int(due_at.timestamp() * 1000)})
            pipe.execute()
            sent += batch.num_rows
    return sent


def measure(spark: SparkSession, url: str, rows: int, scratch: Path) -> list[Figure]:
    raw = redis.Redis.from_url(url)
    figures: list[Figure] = []

    def rate(name: str, seconds: float, bound: float | None = None) -> None:
        figures.append(Figure(name, rows / seconds, "jobs/s", bound, at_least=True))
        print(f"{name}: {rows / seconds:,.0f} jobs/s", file=sys.stderr)

    def cpu() -> float:
        info = raw.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    table_ = reminders(spark, rows, scratch / "table")
    warm = reminders(spark, WARM, scratch / "warm")
    target = {"url": url, "topic": "reminder"}
    schedule(warm, url=url, topic="warm")

    before = cpu()
    seconds, report = timed(lambda: schedule(table_, **target))
    assert rows == report.new
    rate("schedule from Parquet", seconds, GOAL)
    figures.append(
        Figure("server CPU for each job scheduled", (cpu() - before) / rows * 1e6, "µs", at_least=False)
    )

    for conflict in ("keep", "replace"):
        seconds, report = timed(lambda conflict=conflict: schedule(table_, on_conflict=conflict, **target))
        assert (0, rows) == (report.new, report.kept)
        rate(f"schedule again, on_conflict={conflict}: nothing new", seconds)

    jobs = spark.read.format("duly").option("url", url).load()
    seconds, count = timed(lambda: jobs.where("topic = 'reminder'").agg(F.count("payload")).first()[0])
    assert rows == count
    rate("scan of all jobs, with payload", seconds)
    seconds, count = timed(
        lambda: jobs.where("topic = 'reminder' and state = 'scheduled'").agg(F.count("payload")).first()[0]
    )
    assert rows == count
    rate("scan by state, with payload", seconds)

    raw.flushall()
    seconds, sent = timed(lambda: plain(raw, scratch / "table"))
    assert rows == sent
    rate("plain redis-py, pipelined HSET and ZADD", seconds)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "queue", "everysec")
        server.start()
        spark = session(asked.master)
        try:
            figures = measure(spark, server.url, asked.rows, Path(folder))
        finally:
            spark.stop()
            with suppress(OSError):
                server.close()
    print(table(figures))
    if asked.json is not None:
        write(asked.json, figures, master=asked.master, rows=asked.rows)


if __name__ == "__main__":
    main()
