"""
Far-future jobs: how fast they are put off and hydrated, and what the queue holds meanwhile.

    python bench/spark/hydrate.py --rows 2000000 --json bench/spark/hydrate.json

The rows are due over 90 days. Passes move an hour at a time on a test clock, and what a pass moved is taken
out of the queue before the next, as workers would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from duly.bench.figure import Figure
from duly.bench.report import machine, table
from duly.connection import Link
from duly.embedded.server import EmbeddedServer
from duly.namespace import create
from duly.spark import session
from duly.spark.horizon import put_off
from duly.spark.horizon.hydrating import hydrate
from duly.spark.horizon.queue import Queue
from duly.spark.horizon.table import HorizonTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
BEGIN_MS = 1_800_000_000_000
DAYS = 90


def measure(spark: SparkSession, url: str, rows: int, passes: int, folder: Path) -> list[Figure]:
    """
    Put rows off, then hydrate hour by hour.
    """
    path = str(folder / "later")
    frame = spark.range(rows).selectExpr(
        "concat('customer-', id) as id",
        f"timestamp_millis({BEGIN_MS} + id * {DAYS * 24 * HOUR_MS} div {rows}) as due_at",
        """concat('{"customer":', id, ',"template":"renewal","locale":"de"}') as payload""",
    )
    began = time.perf_counter()
    assert rows == put_off(frame, path, topic="renewal")
    figures = [Figure("put off", rows / (time.perf_counter() - began), "jobs/s")]

    asyncio.run(_create(url))
    raw = redis.Redis.from_url(url)
    seconds, moved, held = 0.0, 0, []
    for number in range(passes):
        queue = Queue(url, "bench", now_ms=BEGIN_MS + number * HOUR_MS)
        began = time.perf_counter()
        report = hydrate(spark, HorizonTable(path), queue, window_ms=HOUR_MS)
        seconds += time.perf_counter() - began
        moved += report.moved
        held.append(int(raw.info("memory")["used_memory"]))
        # In the place of workers: what was moved leaves the queue again.
        raw.delete("{bench:0}:jobs", "{bench:0}:due", "{bench:0}:events")
        print(f"pass {number + 1}: {report.moved:,} moved", file=sys.stderr)
    figures.append(Figure("an hour's pass", seconds / passes, "s"))
    figures.append(Figure("moved in a pass", moved / passes, "jobs"))
    figures.append(
        Figure("memory of the server, last pass over first", held[-1] / held[0], "", 1.2, at_least=False)
    )

    queue = Queue(url, "bench", now_ms=BEGIN_MS + passes * HOUR_MS)
    began = time.perf_counter()
    report = hydrate(spark, HorizonTable(path), queue, window_ms=DAYS * 24 * HOUR_MS)
    assert rows == moved + report.moved
    figures.append(Figure("hydrate the rest at once", report.moved / (time.perf_counter() - began), "jobs/s"))
    return figures


async def _create(url: str) -> None:
    link = Link(url)
    await create(link, "bench", 1, clock="test")
    await link.aclose()


def main() -> None:
    """
    Print figures, and write them down.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--passes", type=int, default=24)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "queue", "everysec")
        server.start()
        spark = session(asked.master)
        try:
            figures = measure(spark, server.url, asked.rows, asked.passes, Path(folder))
        finally:
            spark.stop()
            with suppress(OSError):
                server.close()
    print(table(figures))
    if asked.json is not None:
        about: dict[str, Any] = machine() | {"master": asked.master, "rows": asked.rows}
        found = [
            {"name": figure.name, "value": round(figure.value, 2), "unit": figure.unit, "bound": figure.bound}
            for figure in figures
        ]
        asked.json.write_text(
            json.dumps({"machine": about, "figures": found}, indent=2, ensure_ascii=False) + "\n"
        )


if __name__ == "__main__":
    main()
