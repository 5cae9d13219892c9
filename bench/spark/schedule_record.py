"""
Schedule by way of a record, measured, beside `enqueue_many` of one process with the same record.

    python bench/spark/schedule_record.py --rows 200000 --json bench/spark/schedule_record.json

A PostgreSQL of its own and one Valkey with an append-only file synced each second, Spark on local[2].
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from duly import Duly
from duly.bench.figure import Figure
from duly.bench.postgres import postgresql
from duly.bench.report import table, write
from duly.newjob import NewJob
from duly.record.schema import migrate
from duly.spark import session
from duly.spark.schedule import schedule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duly.spark.schedule import Report

PAYLOAD = '{"customer":%d,"template":"reminder","locale":"de","text":"Please remember this"}'


def reminders(spark: SparkSession, rows: int, due_at: datetime, folder: Path) -> DataFrame:
    spark.range(rows, numPartitions=8).select(
        F.format_string("customer-%d", "id").alias("id"),
        F.lit(due_at).alias("due_at"),
        F.format_string(PAYLOAD, "id").alias("payload"),
    ).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def measure(asked: argparse.Namespace, app: Duly, runner: asyncio.Runner, folder: Path) -> list[Figure]:
    url = runner.run(app.store()).link.url
    spark = session(asked.master)

    def run(frame: DataFrame, topic: str) -> tuple[float, Report]:
        began = time.perf_counter()
        report = schedule(frame, url=url, topic=topic, record=app.settings.record)
        return report.rows / (time.perf_counter() - began), report

    now = datetime.now(UTC)
    run(reminders(spark, 2_000, now + timedelta(hours=1), folder / "warm"), "warm")
    figures = []
    for name, due_at in (("near", now + timedelta(hours=1)), ("far", now + timedelta(days=90))):
        frame = reminders(spark, asked.rows, due_at, folder / name)
        rate, report = run(frame, name)
        assert asked.rows == report.new, report
        figures.append(Figure(f"schedule by way of a record, {name} jobs", rate, "jobs/s", at_least=True))
        rate, report = run(frame, name)
        assert asked.rows == report.kept, report
        figures.append(Figure(f"the same again, {name} jobs: nothing new", rate, "jobs/s", at_least=True))
    spark.stop()

    jobs = (
        NewJob("plain", (PAYLOAD % n).encode(), id=f"customer-{n}", due_at=now + timedelta(hours=1))
        for n in range(asked.rows)
    )
    began = time.perf_counter()
    runner.run(app.enqueue_many(jobs))
    rate = asked.rows / (time.perf_counter() - began)
    return [
        *figures,
        Figure("app.enqueue_many with the record, one process, near jobs", rate, "jobs/s", at_least=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder, postgresql() as record:
        migrate(record)
        app = Duly(data=Path(folder) / "queue", durability="everysec", record=record)
        with asyncio.Runner() as runner:
            try:
                figures = measure(asked, app, runner, Path(folder))
            finally:
                runner.run(app.aclose())
    print(table(figures))
    if asked.json is not None:
        write(asked.json, figures, master=asked.master, rows=asked.rows)


if __name__ == "__main__":
    main()
