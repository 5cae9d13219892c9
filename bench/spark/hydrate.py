"""
Far-future jobs: how fast they are put off and hydrated, and what the queue holds meanwhile.

    python bench/spark/hydrate.py --rows 2000000 --json bench/spark/hydrate.json

The rows are due over 90 days. Passes move an hour at a time on a test clock; in each hour jobs are cancelled
and rescheduled on both sides, now and then rows are added after their pass, and a worker runs what is due.
In the end each job ran once, when it should, or was cancelled; if not, the program ends with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from later import Later, live

from duly.bench.figure import Figure
from duly.bench.report import table, write
from duly.embedded.server import EmbeddedServer
from duly.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def measure(spark: SparkSession, url: str, rows: int, hours: int, folder: Path) -> tuple[list[Figure], Later]:
    """
    Put rows off, then hydrate hour by hour.
    """
    later = Later(spark, url, str(folder / "later"), rows)
    began = time.perf_counter()
    assert rows == later.put()
    figures = [Figure("put off", rows / (time.perf_counter() - began), "jobs/s", at_least=True)]

    asyncio.run(later.create())
    raw = redis.Redis.from_url(url)
    seconds, moved, held = [], 0, []
    for number, report in enumerate(live(later, hours), 1):
        seconds.append(report.seconds)
        moved += report.moved
        held.append(int(raw.info("memory")["used_memory"]))
        print(f"pass {number}: {report.moved:,} moved", file=sys.stderr)
    # The first few passes bring tables and buffers that stay.
    early, last = statistics.median(held[2:6]), statistics.median(held[-4:])
    figures += [
        Figure("an hour's pass, median", statistics.median(seconds), "s", at_least=False),
        Figure("moved in a pass", moved / hours, "jobs", at_least=True),
        Figure("memory of the server with an hour of jobs", last / 2**20, "MiB", at_least=False),
        Figure("that, last passes over first", last / early, "", 1.1, at_least=False),
        Figure("ran early", later.early, "jobs", 0, at_least=False),
        Figure("ran twice", later.twice, "jobs", 0, at_least=False),
        Figure("missed, or ran when they should not", later.missed(hours), "jobs", 0, at_least=False),
    ]
    return figures, later


def main() -> int:
    """
    Print figures, and write them down.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--passes", type=int, default=24, help="hours to live through, 8 at least")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    if asked.passes < 8:
        parser.error("--passes: fewer than 8 do not show whether memory grows")
    with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedServer(Path(folder) / "queue", "everysec")
        server.start()
        spark = session(asked.master)
        try:
            figures, later = measure(spark, server.url, asked.rows, asked.passes, Path(folder))
        finally:
            spark.stop()
            with suppress(OSError):
                server.close()
    print(table(figures))
    print(f"{len(later.ran):,} ran in {asked.passes} hours; " + ", ".join(_said(later)))
    if asked.json is not None:
        lived = {"passes": asked.passes, "ran": len(later.ran), "changes": later.asked}
        write(asked.json, figures, master=asked.master, rows=asked.rows, **lived)
    return 1 if any(figure.kept is False for figure in figures) else 0


def _said(later: Later) -> list[str]:
    return [f"{count:,} {what}" for what, count in later.asked.items()]


if __name__ == "__main__":
    sys.exit(main())
