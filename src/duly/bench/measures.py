"""
What is measured, each with the figure it should reach.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import redis.asyncio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.bench.rig import Rig

from duly.bench import postgres
from duly.bench.figure import Figure
from duly.bench.http import http
from duly.bench.rig import PAD
from duly.extras import installed


@dataclass(frozen=True, slots=True)
class Sizes:
    """
    How much of it.
    """

    jobs: int = 100_000
    one_by_one: int = 5_000
    seconds: float = 10.0
    backlog: int = 1_000_000
    herd: int = 100_000
    requests: int = 20_000


QUICK = Sizes(jobs=20_000, one_by_one=2_000, seconds=3.0, backlog=100_000, herd=20_000, requests=5_000)


async def bulk(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Enqueue many delayed jobs in one call.
    """
    jobs = [rig.noop.job(n, PAD).options(id=str(n), delay=3600) for n in range(sizes.jobs)]
    began = time.perf_counter()
    await rig.app.enqueue_many(jobs)
    return [
        Figure("bulk enqueue", sizes.jobs / (time.perf_counter() - began), "jobs/s", 80_000, at_least=True)
    ]


async def processed(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Run jobs that are ready, with a handler that does nothing.
    """
    await rig.app.enqueue_many([rig.noop.job(n, PAD) for n in range(sizes.jobs)])
    began = time.perf_counter()
    async with rig.working():
        await rig.ended(sizes.jobs)
        took = time.perf_counter() - began
    return [Figure("processed", sizes.jobs / took, "jobs/s", 45_000, at_least=True)]


async def awaited(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Enqueue one job after the other in each of 100 tasks.
    """
    tasks = 100
    each = sizes.jobs // tasks

    async def send(task: int) -> None:
        for n in range(each):
            await rig.app.enqueue(rig.noop.job(task * each + n, PAD), delay=3600)

    began = time.perf_counter()
    await asyncio.gather(*(send(task) for task in range(tasks)))
    return [
        Figure(
            "awaited enqueue, 100 tasks",
            tasks * each / (time.perf_counter() - began),
            "jobs/s",
            30_000,
            at_least=True,
        )
    ]


async def one_by_one(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Enqueue one job after the other.
    """
    began = time.perf_counter()
    for n in range(sizes.one_by_one):
        await rig.app.enqueue(rig.noop.job(n, PAD), delay=3600)
    return [
        Figure(
            "awaited enqueue, one by one",
            sizes.one_by_one / (time.perf_counter() - began),
            "jobs/s",
            5_000,
            at_least=True,
        )
    ]


async def single(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    What one enqueue costs beside the least that could keep a job: both in turns, call by call.
    """
    store = await rig.app.store()
    client = redis.asyncio.from_url(store.link.url)
    value = PAD + PAD
    rounds = 10
    calls = sizes.one_by_one // rounds

    async def enqueue(n: int) -> None:
        await rig.app.enqueue(rig.noop.job(n, PAD), delay=3600)

    async def set_and_add(n: int) -> None:
        await client.set(f"single:{n}", value)
        await client.zadd("single:due", {str(n): n})

    async def set_one(n: int) -> None:
        await client.set(f"single:{n}", value)

    took: dict[object, float] = {}
    used: dict[object, float] = {}
    for turn in range(rounds):
        for way in (enqueue, set_and_add, set_one):
            cpu, began = await rig.server_cpu_s(), time.perf_counter()
            for n in range(turn * calls, (turn + 1) * calls):
                await way(n)
            took[way] = took.get(way, 0.0) + time.perf_counter() - began
            used[way] = used.get(way, 0.0) + await rig.server_cpu_s() - cpu
    await client.aclose()
    return [
        Figure("server CPU, one enqueue", used[enqueue] / (rounds * calls) * 1e6, "µs", at_least=False),
        Figure(
            *(
                "server CPU, one enqueue against a SET and a ZADD",
                used[enqueue] / used[set_and_add],
                "ratio",
                1.1,
            ),
            at_least=False,
        ),
        Figure(
            "one by one against SET by asyncio redis-py",
            took[set_one] / took[enqueue],
            "ratio",
            0.7,
            at_least=True,
        ),
    ]


async def bare(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    What redis-py does of itself in the same minutes: the measure of this machine.
    """
    store = await rig.app.store()
    client = redis.asyncio.from_url(store.link.url)
    value = PAD + PAD
    began = time.perf_counter()
    for n in range(sizes.one_by_one):
        await client.set(f"bare:{n % 100}", value)
    one = time.perf_counter() - began
    began = time.perf_counter()
    for at in range(0, sizes.jobs, 500):
        pipeline = client.pipeline(transaction=False)
        for n in range(at, at + 500):
            pipeline.hset("bare", str(n), value)  # type: ignore[unused-awaitable]  # a pipeline collects
            pipeline.zadd("bare:due", {str(n): n})  # type: ignore[unused-awaitable]  # likewise
        await pipeline.execute()
    many = time.perf_counter() - began
    await client.aclose()
    return [
        Figure("bare redis-py: SET, one by one", sizes.one_by_one / one, "calls/s", at_least=True),
        Figure(
            "bare redis-py: HSET and ZADD in pipelines of 500", sizes.jobs / many, "jobs/s", at_least=True
        ),
    ]


async def _lateness(
    rig: Rig, rate: float, seconds: float, name: str, p50: float | None, p99: float
) -> list[Figure]:
    count = max(20, round(rate * seconds))
    start = datetime.now(UTC) + timedelta(seconds=1.5)
    # Spread over the milliseconds at random, as real due times are.
    shuffle = random.Random(1)  # reproducible, not secret
    jobs = [
        rig.noop.job(n, PAD).options(
            id=str(n), due_at=start + timedelta(seconds=(n + shuffle.random()) / rate)
        )
        for n in range(count)
    ]
    rig.timed = True
    async with rig.working(concurrency=200):
        await rig.app.enqueue_many(jobs)
        await rig.ended(count, patience_s=seconds + count / rate + 30)
    rig.timed = False
    late = sorted(rig.late_ms)
    figures = [
        Figure(f"lateness {name}, p50", late[len(late) // 2], "ms", p50, at_least=False),
        Figure(f"lateness {name}, p99", late[int(len(late) * 0.99)], "ms", p99, at_least=False),
        Figure(f"lateness {name}, max", late[-1], "ms", at_least=False),
        Figure(f"{name}: early", sum(each < 0 for each in late), "jobs", 0, at_least=False),
        Figure(f"{name}: lost or run twice", _not_once(rig, count), "jobs", 0, at_least=False),
    ]
    return figures if p50 is not None else figures[1:]


def _not_once(rig: Rig, count: int) -> int:
    return sum(rig.ran.get(str(n), 0) != 1 for n in range(count))


async def lateness_500(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    How late jobs start at 500 a second.
    """
    return await _lateness(rig, 500, sizes.seconds, "at 500/s", 1.5, 5)


async def lateness_1000(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    How late jobs start at 1,000 a second.
    """
    return await _lateness(rig, 1000, sizes.seconds, "at 1,000/s", 1.5, 5)


async def sparse(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    How late jobs start when hardly anything happens.
    """
    return await _lateness(rig, 10, 2 * sizes.seconds, "sparse, 10/s", None, 4)


async def memory(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    What a scheduled job costs the server in memory.
    """
    figures = []
    for name, bound, id_of in (("short ids", 240, str), ("generated ids", 275, lambda _: None)):
        await rig.clear()
        before = await rig.memory()
        # Without the events of the bench itself: they are bounded, not per job.
        await rig.app.enqueue_many(
            [rig.noop.job(n, PAD).options(id=id_of(n), delay=36_000) for n in range(sizes.jobs)]
        )
        store = await rig.app.store()
        events = int(
            await store.link.call("MEMORY", "USAGE", store.keys[0].fixed["events"], "SAMPLES", 0) or 0
        )
        each = (await rig.memory() - before - events) / sizes.jobs
        figures.append(Figure(f"memory per scheduled job, {name}", each, "bytes", bound, at_least=False))
    return figures


async def life(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    What the whole life of a delayed job costs the server in processor time.
    """
    before = await rig.server_cpu_s()
    await rig.app.enqueue_many([rig.noop.job(n, PAD).options(delay=2.0) for n in range(sizes.jobs)])
    async with rig.working():
        await rig.ended(sizes.jobs)
    used = await rig.server_cpu_s() - before
    return [Figure("server CPU, life of a delayed job", used / sizes.jobs * 1e6, "µs", 30, at_least=False)]


async def idle(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    What a worker without work asks of the server.
    """
    await rig.app.enqueue(rig.noop.job(0, PAD))
    async with rig.working():
        await rig.ended(1)
        await asyncio.sleep(1)
        before, began = await rig.commands(), time.monotonic()
        await asyncio.sleep(max(10.0, sizes.seconds))
        # Less the two questions of this measure.
        commands = await rig.commands() - before - 2
        took = time.monotonic() - began
    return [Figure("idle worker", commands / took, "commands/s", 10, at_least=False)]


async def backlog(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Whether a large backlog slows enqueueing down.
    """
    batch = 20_000

    async def fill(start: int, count: int) -> float:
        spread = random.Random(start)  # reproducible, not secret
        began = 0.0
        for at in range(start, start + count, batch):
            jobs = [
                rig.noop.job(n, PAD).options(id=str(n), delay=3600 + spread.random() * 86_400)
                for n in range(at, at + batch)
            ]
            began = time.perf_counter()
            await rig.app.enqueue_many(jobs)
        return batch / (time.perf_counter() - began)

    await fill(0, batch)
    small = sorted([await fill(at * batch, batch) for at in range(1, 4)])[1]
    await fill(4 * batch, sizes.backlog - 4 * batch)
    large = sorted([await fill(sizes.backlog + at * batch, batch) for at in range(3)])[1]
    return [
        Figure(
            f"enqueue rate at a backlog of {sizes.backlog:,} against {batch:,}",
            large / small,
            "ratio",
            0.8,
            at_least=True,
        )
    ]


async def herd(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Many jobs due in the same second.
    """
    store = await rig.app.store()
    await store.link.call("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
    due = datetime.now(UTC) + timedelta(seconds=4)
    spread = random.Random(2)  # reproducible, not secret
    jobs = [
        rig.noop.job(n, PAD).options(id=str(n), due_at=due + timedelta(seconds=spread.random()))
        for n in range(sizes.herd)
    ]
    async with rig.working():
        await rig.app.enqueue_many(jobs)
        await store.link.call("SLOWLOG", "RESET")
        await asyncio.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
        began = time.perf_counter()
        await rig.ended(sizes.herd)
        took = time.perf_counter() - began
    slow = await store.link.call("SLOWLOG", "GET", 100)
    scripts = [entry for entry in slow if entry[3][0].upper() == b"FCALL"]
    return [
        Figure(
            f"herd of {sizes.herd:,} in a second, drained", sizes.herd / took, "jobs/s", 20_000, at_least=True
        ),
        Figure("herd: scripts over 10 ms", len(scripts), "calls", 0, at_least=False),
        Figure("herd: lost or run twice", _not_once(rig, sizes.herd), "jobs", 0, at_least=False),
    ]


async def record(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    What a database of record costs.
    """
    from duly.bench.record import record as measure  # packages that need not be there

    return await measure(rig, sizes)


MEASURES: dict[str, Callable[[Rig, Sizes], Awaitable[list[Figure]]]] = {
    "processed": processed,
    "bulk": bulk,
    "awaited": awaited,
    "one-by-one": one_by_one,
    "single": single,
    "bare": bare,
    "lateness-500": lateness_500,
    "lateness-1000": lateness_1000,
    "sparse": sparse,
    "memory": memory,
    "life": life,
    "idle": idle,
    "backlog": backlog,
    "herd": herd,
    "http": http,
    "record": record,
}


#: What some of them need beside duly itself.
HTTP = ("starlette", "uvicorn", "httptools")
DATABASE = ("sqlalchemy", "alembic", "psycopg")


def possible(*, record: bool = False) -> list[str]:
    """
    The measures for which everything is installed; with *record* there is a database for them.
    """
    lacking = set()
    if not installed(*HTTP):
        lacking.add("http")
    if not (installed(*DATABASE) and (record or postgres.program("initdb"))):
        lacking.add("record")
    return [name for name in MEASURES if name not in lacking]
