"""
How evenly shards, topics, lanes and workers are served, and what a herd of others does to an urgent topic.

python bench/fairness.py --json bench/fairness.json --plot bench/fairness.png
python bench/fairness.py --only spread
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
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure as Drawing

from duly import Duly, current_job
from duly.bench.figure import Figure
from duly.bench.report import table, write
from duly.figures import percentile
from duly.job import JobKey, Lane, Order, shard_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from duly.store import Store

SHARDS, TOPICS, CONCURRENCY = (1, 2, 4, 16), (1, 2, 4), (1, 16)
WEIGHTS = {Lane.high: 16, Lane.normal: 4, Lane.low: 1}
FEW, MANY = 10, 1_000  #: topics of one worker
URGENT_S = 0.02  #: between two urgent jobs
WORKERS, SLOTS, TOGETHER = 3, 40, 30  #: processes, slots of each, and jobs that become ready together
SPREAD = "spread"  #: the topic of these
RUNS_S = 0.05  #: how long each of them takes: longer than it takes to hand them all out
PATIENCE_S = 60.0  #: for processes that start, and for a round
WAITER_BYTES = 18  #: of each worker that waits, see scripts/lib/shares.lua
PARTS = ("shares", "rates", "spread", "herds")


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
    A worker in a process of its own; it prints how late each job is, if somebody reads that.
    """
    app = Duly(url, namespace="herd")

    @app.handler(topic)
    async def run() -> None:
        if topic in {"urgent", SPREAD}:
            print(current_job().id, time.time() * 1000 - current_job().due_ms, flush=True)
        if topic == SPREAD:
            await asyncio.sleep(RUNS_S)

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
        command = [sys.executable, __file__, "--url", url, "--worker"]
        workers = [] if foreign else [_start([*command, "bulk", "--concurrency", "50"])]
        urgent = _start([*command, "urgent", "--concurrency", "10"], stdout=subprocess.PIPE, text=True)
        try:
            # How long a process takes to start is not measured.
            await _all_wait(store, "urgent", 1, 10)
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


async def spread(url: str, rounds: int, delay_s: float) -> list[list[int]]:
    """
    How many of the jobs that become ready together each of some waiting workers gets, round by round.
    """
    command = [sys.executable, __file__, "--url", url, "--worker", SPREAD, "--concurrency", str(SLOTS)]
    workers = [_start(command, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)]
    try:
        async with Duly(url, namespace="herd") as app:
            store = await app.store()
            for turn in range(rounds):
                await _all_wait(store, SPREAD, WORKERS, SLOTS, turn * TOGETHER)
                due_ms = int(time.time() * 1000 + delay_s * 1000) if delay_s else None
                await store.enqueue_many(
                    [
                        Order(JobKey(SPREAD, f"{turn}.{number}"), b"{}", due_ms=due_ms)
                        for number in range(TOGETHER)
                    ]
                )
            await _all_wait(store, SPREAD, WORKERS, SLOTS, rounds * TOGETHER)
    finally:
        for process in workers:
            process.terminate()
        told = [process.communicate(timeout=60)[0] for process in workers]
    counts = [Counter(line.partition(".")[0] for line in lines.splitlines()) for lines in told]
    found = [[count[str(turn)] for count in counts] for turn in range(rounds)]
    if any(sum(each) != TOGETHER for each in found):
        raise RuntimeError(f"{TOGETHER} jobs were to run in each round, and workers tell of {found}")
    return found


async def _all_wait(store: Store, topic: str, workers: int, slots: int, done: int = 0) -> None:
    """
    Wait until so many jobs of a topic are done, and each worker says that all of its slots are free.
    """
    deadline = time.monotonic() + PATIENCE_S
    names = [f"{topic}:succeeded", f"{topic}:waiting"]
    while time.monotonic() < deadline:
        ended, told = await store.link.call("HMGET", store.keys[0].fixed["topics"], *names)
        waiting = told or b""
        each = [waiting[at : at + WAITER_BYTES] for at in range(0, len(waiting), WAITER_BYTES)]
        # The highest bit says that it looks by itself at the next due time.
        free = [int.from_bytes(one[16:]) & 0x7FFF for one in each]
        if int(ended or 0) == done and free == [slots] * workers:
            return
        await asyncio.sleep(0.01)
    raise RuntimeError(f"not {workers} workers wait within {PATIENCE_S:g} s, with {done} jobs done")


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
    figures: list[Figure] = []
    drawn: dict[str, Any] = {"shares": {}, "spread": {}, "herds": {}}
    measures = {
        "shares": measure_shares,
        "rates": measure_rates,
        "spread": measure_spread,
        "herds": measure_herds,
    }
    for part in args.only or PARTS:
        figures += await measures[part](args, drawn)
    return figures, drawn


@contextmanager
def folder() -> Iterator[str]:
    """
    A place for a server's data.
    """
    # The server ends a moment after its last user, and may write meanwhile.
    with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as data:
        yield data


async def measure_shares(args: argparse.Namespace, drawn: dict[str, Any]) -> list[Figure]:
    figures = []
    with folder() as data:
        for shards, topics, concurrency in itertools.product(SHARDS, TOPICS, CONCURRENCY):
            runs = args.runs * shards * topics
            found = await shares(data, shards, topics, concurrency, runs)
            name = f"{shards} shards, {topics} topics, concurrency {concurrency}"
            drawn["shares"][name] = list(found.values())
            least = min(found.values())
            figures.append(Figure(f"least share, {name}", least, "of its share", 0.5, at_least=True))
            print(f"{name}: {least:.2f}", file=sys.stderr)
    return figures


async def measure_rates(args: argparse.Namespace, _: dict[str, Any]) -> list[Figure]:
    rates: dict[int, list[float]] = {FEW: [], MANY: []}
    with folder() as data:
        for _round in range(5):
            for topics, found in rates.items():
                found.append(await rate(data, topics, args.jobs))
    few, many = (statistics.median(found) for found in rates.values())
    return [Figure(f"rate with {MANY:,} topics against {FEW}", many / few, "ratio", 0.7, at_least=True)]


async def measure_spread(args: argparse.Namespace, drawn: dict[str, Any]) -> list[Figure]:
    figures = []
    for name, delay_s in (("sent in one call", 0.0), ("due at the same time", 0.3)):
        with folder() as data:
            async with Duly(data=data, durability="everysec") as keeper:
                found = await spread((await keeper.store()).link.url, args.rounds, delay_s)
        drawn["spread"][name] = found
        print(f"{TOGETHER} jobs {name}: {found}", file=sys.stderr)
        even = sum(max(each) <= TOGETHER / 2 for each in found)
        whole = sum(max(each) == TOGETHER for each in found)
        jobs = f"{TOGETHER} jobs {name}, {WORKERS} workers"
        figures += [
            Figure(*(f"{jobs}: none got over half", even / args.rounds, "of the rounds", 0.9), at_least=True),
            Figure(f"{jobs}: one got all", whole, "rounds", 0, at_least=False),
        ]
    return figures


async def measure_herds(args: argparse.Namespace, drawn: dict[str, Any]) -> list[Figure]:
    figures = []
    for name, foreign, jobs in (("herd", 0, args.herd), ("foreign topics", args.foreign, 10 * args.foreign)):
        with folder() as data:
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
    return figures


def plot(path: Path, drawn: dict[str, Any]) -> None:
    """
    Draw what was measured, one below the other.
    """
    drawings = [partial(_draw_shares, drawn["shares"])] * bool(drawn["shares"])
    drawings += [partial(_draw_spread, name, rounds) for name, rounds in drawn["spread"].items()]
    drawings += [partial(_draw_herd, name, late) for name, late in drawn["herds"].items()]
    if not drawings:
        return
    figure = Drawing(figsize=(11, 4 * len(drawings)), layout="constrained")
    for axes, draw in zip(figure.subplots(len(drawings), 1, squeeze=False)[:, 0], drawings, strict=True):
        draw(axes)
    figure.savefig(path, dpi=110)


def _draw_shares(found: dict[str, list[float]], axes: Axes) -> None:
    axes.boxplot(list(found.values()), whis=(0, 100))
    axes.set_xticks(range(1, len(found) + 1), list(found), rotation=30, ha="right", fontsize=7)
    axes.axhline(1, color="tab:green", linewidth=0.8)
    axes.axhline(0.5, color="tab:red", linewidth=0.8, linestyle="--")
    title = "What each shard, topic and lane got of its weighted share"
    axes.set(title=title, ylabel="share", ylim=(0, None))


def _draw_spread(name: str, rounds: list[list[int]], axes: Axes) -> None:
    below = [0] * len(rounds)
    for number, each in enumerate(zip(*rounds, strict=True), 1):
        axes.bar(range(1, len(rounds) + 1), each, bottom=below, label=f"worker {number}")
        below = [was + more for was, more in zip(below, each, strict=True)]
    axes.legend(loc="lower right")
    axes.set(title=f"Who got the {TOGETHER} jobs that were {name}", xlabel="round", ylabel="jobs")


def _draw_herd(name: str, late: list[tuple[float, float]], axes: Axes) -> None:
    axes.plot([at for at, _ in late], [ms for _, ms in late], ".", markersize=3)
    axes.axvline(0, color="tab:red", linewidth=0.8)
    axes.set(title=f"An urgent topic beside {name}", xlabel="seconds after it fell due", ylabel="ms late")
    axes.set_ylim(0, None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2_000, help="jobs run for each shard and topic")
    parser.add_argument("--herd", type=int, default=200_000)
    parser.add_argument("--foreign", type=int, default=3_000, help="topics that nobody serves, ten jobs each")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs run with few and with many topics")
    parser.add_argument("--rounds", type=int, default=20, help="in which jobs become ready together")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to look at a herd")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part (may be repeated)")
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
