"""
Reconcile with Spark, measured: a record, a queue and a history in which every kind of difference is planted.

    python bench/spark/reconcile.py --rows 1000000 --json bench/spark/reconcile.json

A PostgreSQL of its own and one Valkey with an append-only file synced each second, Spark on local[2].
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import redis
from planting import Planted

from duly import Duly
from duly.bench.figure import Figure
from duly.bench.postgres import postgresql
from duly.bench.report import table, write
from duly.record.schema import migrate
from duly.spark import session
from duly.spark.reconcile.pipeline import DUPLICATE, reconcile

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL_S = 60
PAGE = 1_000


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = work()
    return time.perf_counter() - began, answer


def plain(url: str, record: str, key: str) -> int:
    """
    What one would write by hand: all rows and all jobs read by one process, which names are on one side only.
    """
    with psycopg.connect(record) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = PAGE
        cursor.execute("SELECT topic, id, revision, due_ms, payload FROM duly_jobs WHERE state = 0")
        rows = {f"{topic}/{id_}".encode(): rest for topic, id_, *rest in cursor}
    raw = redis.Redis.from_url(url)
    jobs = dict(raw.hscan_iter(key, count=PAGE))
    return len(rows.keys() ^ jobs.keys())


def measure(asked: argparse.Namespace, record: str, folder: Path) -> list[Figure]:
    history = str(folder / "history")
    app = Duly(data=folder / "queue", durability="everysec", record=record)
    with asyncio.Runner() as runner:
        try:
            found = runner.run(app.record())
            planted = Planted(found, asked.rows, asked.planted)
            seconds, _ = timed(lambda: runner.run(planted.plant(history)))
            print(f"planted within {seconds:.0f} s", file=sys.stderr)
            store = found.store
            by_hand_s, _ = timed(lambda: plain(store.link.url, record, store.keys[0].fixed["jobs"]))

            begun_s, spark = timed(lambda: session(asked.master))
            compare = partial(reconcile, spark, app, runner.run, table=history, apply=True)
            mend_s, report = timed(compare)
            assert planted.expected == dict(report.found), report
            # That something ended twice cannot be mended.
            assert planted.expected | {DUPLICATE: 0} == {kind: report.repaired[kind] for kind in report.found}
            again_s, report = timed(compare)
            assert {DUPLICATE: asked.planted} == dict(report.found), report
            assert report.suspects == report.brought == 0, report
            spark.stop()
        finally:
            runner.run(app.aclose())
    rows = f"{asked.rows:,} rows"
    return [
        Figure(f"find and mend all, {rows}", mend_s, "s", GOAL_S, at_least=False),
        Figure("compare again, nothing found", again_s, "s", GOAL_S, at_least=False),
        Figure("plain psycopg and redis-py: names on one side only", by_hand_s, "s", at_least=False),
        Figure("start of Spark", begun_s, "s", at_least=False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--planted", type=int, default=1_000, help="differences of each kind")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder, postgresql() as record:
        migrate(record)
        figures = measure(asked, record, Path(folder))
    print(table(figures))
    if asked.json is not None:
        write(asked.json, figures, master=asked.master, rows=asked.rows, planted=asked.planted)


if __name__ == "__main__":
    main()
