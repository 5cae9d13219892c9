"""
How fast events get from the queue into the history, beside reading them with plain redis-py.

python bench/spark/history.py --events 1000000 --json bench/spark/history.json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from duly import Duly
from duly.bench.figure import Figure
from duly.bench.report import machine, table, write
from duly.events import unpack
from duly.job import JobKey, Order
from duly.spark import session
from duly.spark.history.pipeline import HistoryOptions, history, run_stream
from duly.spark.history.reading import read_history
from duly.spark.ledger import ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from duly.store import Store

TOPICS = ("mail.welcome", "payment.check", "report.build", "sms")


async def fill(store: Store, events: int) -> None:
    for start in range(0, events, 50_000):
        numbers = range(start, min(start + 50_000, events))
        orders = [
            Order(JobKey(TOPICS[number % 4], f"job-{number:08}"), b'{"user": 42}', delay_ms=3_600_000)
            for number in numbers
        ]
        await store.enqueue_many(orders)


def timed(what: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = what(*args)
    return time.perf_counter() - start, answer


def plain(url: str, key: str) -> int:
    """
    The events by redis-py and `duly.events`, in one process, kept nowhere.
    """
    rows, start = 0, "-"
    with redis.Redis.from_url(url, protocol=2) as client:
        client.response_callbacks.clear()
        while page := client.execute_command("XRANGE", key, start, "+", "COUNT", 200):
            rows += sum(len(unpack(0, entry, fields)[1]) for entry, fields in page)
            start = f"({page[-1][0].decode()}"
    return rows


def drain(spark: SparkSession, url: str, namespace: str, folder: str) -> None:
    """
    Let Spark read the events and keep nothing.
    """
    stream = spark.readStream.format("duly.events").option("url", url).option("namespace", namespace)
    query = stream.load().writeStream.format("noop").trigger(availableNow=True)
    run_stream(query.option("checkpointLocation", folder).start)


async def measure(events: int, master: str) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as folder:
        settings = {"durability": "everysec", "events_rows": 10 * events, "events_bytes": 8 << 30}
        spark = session(master, **{"spark.driver.memory": "3g"})
        app = Duly(data=Path(folder) / "queue", namespace="warm", **settings)
        async with app:
            store = await app.store()
            await fill(store, 50_000)
            url = store.link.url
            options = HistoryOptions(url=url, namespace="warm", table=f"{folder}/warm")
            # The machine's own start is not what is measured.
            await asyncio.to_thread(history, spark, options)
            for name, max_rows in (("one batch", events), ("batches of 200,000", 200_000)):
                namespace = f"n{max_rows}"
                async with Duly(data=Path(folder) / "queue", namespace=namespace, **settings) as own:
                    mine = await own.store()
                    await fill(mine, events)
                    if name == "one batch":
                        seconds, rows = await asyncio.to_thread(
                            timed, plain, url, mine.keys[0].fixed["events"]
                        )
                        assert rows == events
                        figures.append(
                            Figure(
                                "redis-py and duly.events, one process",
                                rows / seconds,
                                "events/s",
                                at_least=True,
                            )
                        )
                        sink = f"{folder}/noop"
                        seconds, _ = await asyncio.to_thread(timed, drain, spark, url, namespace, sink)
                        figures.append(
                            Figure("duly.events, read only", events / seconds, "events/s", at_least=True)
                        )
                    options = HistoryOptions(
                        url=url, namespace=namespace, table=f"{folder}/{namespace}", max_rows=max_rows
                    )
                    seconds, run = await asyncio.to_thread(timed, history, spark, options)
                    assert run.rows == events, run
                    bound = 60_000 if name == "one batch" else None
                    figures.append(
                        Figure(f"history, {name}", events / seconds, "events/s", bound, at_least=True)
                    )
            seconds, rows = timed(lambda: ledger(read_history(spark, options.table)).collect())
            assert events == sum(row.accepted for row in rows)
            assert not any(row.difference for row in rows)
            figures.append(Figure("ledger", events / seconds, "events/s", at_least=True))
        spark.stop()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    figures = asyncio.run(measure(asked.events, asked.master))
    about = {**machine(), "events": asked.events, "master": asked.master}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(table(figures))
    if asked.json is not None:
        write(asked.json, figures, events=asked.events, master=asked.master)
    return 1 if any(figure.kept is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
