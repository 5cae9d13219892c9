"""
How evenly shards, topics and lanes are served, and what a herd of others does to an urgent topic.

python bench/fairness.py --json bench/fairness.json --plot bench/fairness.png
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from duly import Duly, current_job
from duly.bench.figure import Figure
from duly.bench.report import table, write
from duly.figures import percentile
from duly.job import JobKey, Lane, Order, shard_of

SHARDS, TOPICS, CONCURRENCY = (1, 2, 4, 16), (1, 2, 4), (1, 16)
WEIGHTS = {Lane.high: 16, Lane.normal: 4, Lane.low: 1}
FEW, MANY = 10, 1_000  #: topics of one worker
URGENT_S = 0.02  #: between two urgent jobs


async def shares(data: str, shards: int, topics: int, concurrency: int, runs: int) -> dict[str, float]:
    """
    What each (shard, topic, lane) got of its weighted share while all of them had a backlog.
    """
    names = [f"t{number}" for number in range(topics)]
    got: Counter[tuple[int, str, str]] = Counter()
    enough = asyncio.Event()
    app = Duly(data=data, namespace=f"s{shards}-{topics}-{concurrency}", shards=shards, durability="everysec")

    def add(topic: str) -> None:
        @app.handler(topic)
        async def run() -> None:
            job = current_job()
            got[shard_of(topic, job.id, shards), topic, job.id.partition(".")[0]] += 1
            if got.total() >= runs:
                enough.set()

    for topic in names:
        add(topic)
    async with app:
        store = await app.store()
        # Twice its share for each, so that none runs dry.
        for topic, (lane, weight) in itertools.product(names, WEIGHTS.items()):
            count = max(200, 3 * runs * weight // sum(WEIGHTS.values()) // topics)
            await store.enqueue_many(
                [Order(JobKey(topic, f"{lane.name}.{number}"), b"{}", lane=lane) for number in range(count)]
            )
        work = asyncio.create_task(app.work(concurrency=concurrency))
        await asyncio.wait([work, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    fair = got.total() / shards / topics / sum(WEIGHTS.values())
    return {
        f"{shard} {topic} {lane.name}": got[shard, topic, lane.name] / fair / weight
        for shard, topic, (lane, weight) in itertools.product(range(shards), names, WEIGHTS.items())
    }


async def work(url: str, topic: str, concurrency: int) -> None:
    """
    A worker in a process of its own; the urgent one prints how late each job is.
    """
    app = Duly(url, namespace="herd")

    @app.handler(topic)
    async def run() -> None:
        if topic == "urgent":
            print(current_job().id, time.time() * 1000 - current_job().due_ms, flush=True)

    async with app:
        await app.work(concurrency=concurrency)


def _start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(command, **options)


async def herd(url: str, jobs: int, foreign: int, seconds: float) -> tuple[list[tuple[float, float]], int]:
    """
    How late urgent jobs are before, while and after a herd falls due, as (seconds after it, ms late).
    """
    app = Duly(url, namespace="herd")
    async with app:
        store = await app.store()
        await store.link.call("CONFIG", "SET", "slowlog-log-slower-than", "10000")
        due_ms = int(time.time() * 1000) + 2_000 + jobs // 50
        orders = (
            Order(
                JobKey(f"foreign-{number % foreign}" if foreign else "bulk", str(number)),
                b"{}",
                due_ms=due_ms,
            )
            for number in range(jobs)
        )
        await store.enqueue_many(orders)
        command = [sys.executable, __file__, "--url", url, "--worker"]
        workers = [] if foreign else [_start([*command, "bulk", "--concurrency", "50"])]
        urgent = _start([*command, "urgent", "--concurrency", "10"], stdout=subprocess.PIPE, text=True)
        try:
            await asyncio.sleep(max(0, due_ms / 1000 - 2 - time.time()))
            await store.link.call("SLOWLOG", "RESET")
            first_s = time.time() + 0.5
            count = int((seconds + 1.5) / URGENT_S)
            for number in range(count):
                at_s = first_s + number * URGENT_S
                await asyncio.sleep(max(0, at_s - 0.3 - time.time()))
                await store.enqueue(Order(JobKey("urgent", str(number)), b"{}", due_ms=round(at_s * 1000)))
            await asyncio.sleep(2)
            slow = int(await store.link.call("SLOWLOG", "LEN"))
        finally:
            for process in (*workers, urgent):
                process.terminate()
            told, _ = urgent.communicate(timeout=60)
            for process in workers:
                process.wait(60)
        late = dict(line.split() for line in told.splitlines())
        return [
            (first_s + int(number) * URGENT_S - due_ms / 1000, float(ms)) for number, ms in late.items()
        ], slow


async def rate(data: str, topics: int, jobs: int) -> float:
    """
    Jobs a second of one worker, spread over so many topics.
    """
    app = Duly(data=data, namespace=f"rate-{topics}-{time.time_ns()}", durability="everysec")
    left, done = jobs, asyncio.Event()

    async def run() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    for number in range(topics):
        app.handler(f"t{number}")(run)
    async with app:
        await (await app.store()).enqueue_many(
            Order(JobKey(f"t{number % topics}", str(number)), b"{}") for number in range(jobs)
        )
        began = time.perf_counter()
        work = asyncio.create_task(app.work(concurrency=1_000))
        await asyncio.wait([work, asyncio.create_task(done.wait())], return_when=asyncio.FIRST_COMPLETED)
        took = time.perf_counter() - began
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    return jobs / took


async def measure(args: argparse.Namespace) -> tuple[list[Figure], dict[str, Any]]:
    figures, drawn = [], {"shares": {}, "herds": {}}
    with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as data:
        for shards, topics, concurrency in itertools.product(SHARDS, TOPICS, CONCURRENCY):
            runs = args.runs * shards * topics
            found = await shares(data, shards, topics, concurrency, runs)
            name = f"{shards} shards, {topics} topics, concurrency {concurrency}"
            drawn["shares"][name] = list(found.values())
            figures.append(Figure(f"least share, {name}", min(found.values()), "of its share", 0.5))
            print(f"{name}: {min(found.values()):.2f}", file=sys.stderr)
        rates: dict[int, list[float]] = {FEW: [], MANY: []}
        for _ in range(5):
            for topics, found_rates in rates.items():
                found_rates.append(await rate(data, topics, args.jobs))
        few, many = (statistics.median(found_rates) for found_rates in rates.values())
        figures.append(Figure(f"rate with {MANY:,} topics against {FEW}", many / few, "ratio", 0.7))
    for name, foreign, jobs in (("herd", 0, args.herd), ("foreign topics", args.foreign, 10 * args.foreign)):
        with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as data:
            async with Duly(data=data, durability="everysec") as keeper:
                late, slow = await herd((await keeper.store()).link.url, jobs, foreign, args.seconds)
        drawn["herds"][name] = late
        p99 = percentile([each for _, each in late] or [math.inf], 0.99)
        figures += [
            Figure(
                f"urgent p99 beside {name} of {jobs}",
                math.inf if p99 is None else p99,
                "ms",
                20,
                at_least=False,
            ),
            Figure(f"scripts over 10 ms beside {name}", slow, "scripts", 0, at_least=False),
        ]
    return figures, drawn


def plot(path: Path, drawn: dict[str, Any]) -> None:
    figure = Drawing(figsize=(11, 12), layout="constrained")
    above, *below = figure.subplots(1 + len(drawn["herds"]), 1)
    above.boxplot(list(drawn["shares"].values()), whis=(0, 100))
    above.set_xticks(
        range(1, len(drawn["shares"]) + 1), list(drawn["shares"]), rotation=30, ha="right", fontsize=7
    )
    above.axhline(1, color="tab:green", linewidth=0.8)
    above.axhline(0.5, color="tab:red", linewidth=0.8, linestyle="--")
    above.set(
        title="What each shard, topic and lane got of its weighted share", ylabel="share", ylim=(0, None)
    )
    for axes, (name, late) in zip(below, drawn["herds"].items(), strict=True):
        axes.plot([at for at, _ in late], [ms for _, ms in late], ".", markersize=3)
        axes.axvline(0, color="tab:red", linewidth=0.8)
        axes.set(
            title=f"An urgent topic beside a {name}", xlabel="seconds after it fell due", ylabel="ms late"
        )
        axes.set_ylim(0, None)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000, help="jobs run for each shard and topic")
    parser.add_argument("--herd", type=int, default=200_000)
    parser.add_argument("--foreign", type=int, default=3_000, help="topics that nobody serves, ten jobs each")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs run with few and with many topics")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to look at a herd")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--worker", help="used by itself: be a worker of this topic")
    parser.add_argument("--concurrency", type=int, default=10)
    args = parser.parse_args()
    if args.worker:
        with suppress(KeyboardInterrupt):
            asyncio.run(work(args.url, args.worker, args.concurrency))
        return
    figures, drawn = asyncio.run(measure(args))
    print(table(figures))
    if args.json:
        write(args.json, figures)
    if args.plot:
        plot(args.plot, drawn)


if __name__ == "__main__":
    main()
