"""
The queue with a record: what its promises cost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from duly.app import Duly
from duly.bench.figure import Figure
from duly.bench.postgres import postgresql
from duly.bench.rig import PAD, Rig
from duly.figures import percentile
from duly.job import JobKey, JobState
from duly.record.mending import rows_of
from duly.record.reconcile import Reconciler
from duly.record.schema import migrate
from duly.record.tables import jobs, metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

    from duly.bench.measures import Sizes
    from duly.record.database import Database

TASKS = 100
COMMITS_PER_S = 50  #: of others, each with a job
LAKH = 100_000


async def record(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Promise, bring to Redis, run and compare jobs with a database of record.
    """
    async with AsyncExitStack() as stack:
        url = rig.record
        if url is None:
            own = postgresql()
            url = await asyncio.to_thread(own.__enter__)
            stack.callback(own.__exit__, None, None, None)
        await asyncio.to_thread(migrate, url)
        figures = []
        for part in (_awaited, _many, _handed_over, _processed):
            async with _recorded(rig, url) as each:
                figures += await part(rig, each, sizes)
    return figures


@asynccontextmanager
async def _recorded(rig: Rig, url: str) -> AsyncIterator[Rig]:
    """
    A rig with a record, on the server of *rig*, in a namespace of its own of which nothing is left.
    """
    async with _app(rig, url, f"bench-{secrets.token_hex(4)}") as app:
        try:
            yield Rig(app)
        finally:
            record = await app.record()
            await record.settle()
            await record.database.write(partial(_forget, app=app))


def _app(rig: Rig, url: str, namespace: str) -> Duly:
    settings = rig.app.settings
    return Duly(
        settings.url, namespace=namespace, data=settings.data, durability=settings.durability, record=url
    )


def _forget(connection: Connection, app: Duly) -> None:
    for table in metadata.sorted_tables:
        connection.execute(delete(table).where(table.c.namespace == app.settings.namespace))


async def _awaited(_: Rig, rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Enqueue one job after the other in each of 100 tasks, beside what the database can do one by one.
    """
    database = (await rig.app.record()).database
    each = max(1, sizes.requests // TASKS)

    async def send() -> None:
        for n in range(each):
            await rig.app.enqueue(rig.noop.job(n, PAD), delay=3600)

    began = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(TASKS)))
    took = time.perf_counter() - began
    return [
        await _one_by_one(rig, database, each),
        Figure("record: awaited enqueue, 100 tasks", TASKS * each / took, "jobs/s", 3_000, at_least=True),
    ]


async def _one_by_one(rig: Rig, database: Database, count: int) -> Figure:
    """
    What there is to compare with; its name says whether commits wait for the disk.
    """
    synced = ""
    if database.name == "postgresql":
        words = await database.read(lambda connection: connection.scalar(text("SHOW fsync")))
        synced = f", fsync {words}"
    began = time.perf_counter()
    for n in range(count):
        await rig.app.enqueue(rig.noop.job(n, PAD), delay=3600)
    rate = count / (time.perf_counter() - began)
    return Figure(f"record: enqueue, one by one ({database.name}{synced})", rate, "jobs/s", at_least=True)


async def _many(_: Rig, rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Enqueue many delayed jobs in one call, and compare them all.
    """
    orders = [rig.noop.job(n, PAD).options(id=str(n), delay=3600) for n in range(sizes.jobs)]
    began = time.perf_counter()
    await rig.app.enqueue_many(orders)
    rate = sizes.jobs / (time.perf_counter() - began)

    whole = await rig.app.record()
    await whole.settle()
    reconciler = Reconciler(whole.database, whole.store, apply=True, generation=whole.guard.generation)
    began = time.perf_counter()
    report = await reconciler.run()
    took = time.perf_counter() - began
    if (report.rows, report.jobs, sum(report.found.values())) != (sizes.jobs, sizes.jobs, 0):
        raise RuntimeError(f"{sizes.jobs} jobs were promised and brought, and reconcile found {report}")
    return [
        Figure("record: enqueue_many", rate, "jobs/s", 10_000, at_least=True),
        Figure("record: reconcile, for 100,000 rows", took * LAKH / sizes.jobs, "s", 15, at_least=False),
    ]


async def _handed_over(_: Rig, rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    How long it takes from the commit of somebody else's transaction until its job runs.
    """
    count = round(COMMITS_PER_S * sizes.seconds)
    committed: list[float] = []
    ran: dict[int, float] = {}

    @rig.app.handler("handed")
    async def handed(n: int) -> None:
        ran[n] = time.perf_counter()

    async with _sender(rig) as app, rig.working(concurrency=100):
        engine = cast("AsyncEngine", (await app.record()).database.engine)  # made for a URL
        began = time.perf_counter()
        for n in range(count):
            async with AsyncSession(engine) as session:
                await app.enqueue(handed.job(n), session=session)
                await session.commit()
                committed.append(time.perf_counter())
            await asyncio.sleep(max(0.0, began + (n + 1) / COMMITS_PER_S - time.perf_counter()))
        await rig.ended(count)
    late_ms = [max(0.0, 1000 * (ran[n] - at)) for n, at in enumerate(committed)]
    return [
        Figure(
            "record: from commit to the start of the job, p50",
            percentile(late_ms, 0.5) or 0.0,
            "ms",
            at_least=False,
        ),
        Figure(
            "record: from commit to the start of the job, p99",
            percentile(late_ms, 0.99) or 0.0,
            "ms",
            50,
            at_least=False,
        ),
    ]


@asynccontextmanager
async def _sender(rig: Rig) -> AsyncIterator[Duly]:
    """
    Another app, as that of another process would be, where the database tells the relay of its commits.
    """
    url = rig.app.settings.record_url or ""
    if (await rig.app.record()).database.name != "postgresql":
        yield rig.app
        return
    async with _app(rig, url, rig.app.settings.namespace) as app:
        yield app


async def _processed(plain: Rig, rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Run jobs that are ready, without and with a record; with it, until every row says how its job ended.
    """
    without = await _run_all(plain, sizes.requests)
    with_record = await _run_all(rig, sizes.requests)
    return [
        Figure("record: processed", with_record, "jobs/s", at_least=True),
        Figure(
            "record: processed, against the same without", with_record / without, "ratio", 0.6, at_least=True
        ),
    ]


async def _run_all(rig: Rig, count: int) -> float:
    await rig.app.enqueue_many([rig.noop.job(n, PAD) for n in range(count)])
    recorded = rig.app.settings.record is not None
    if recorded:
        await (await rig.app.record()).settle()  # what enqueue left to be done is no part of running them
    began = time.perf_counter()
    async with rig.working():
        await rig.ended(count)
        if recorded:
            await _written(rig.app)
        took = time.perf_counter() - began
    return count / took


async def _written(app: Duly) -> None:
    """
    Wait until every row says how its job ended.
    """
    read, namespace = (await app.record()).database.read, app.settings.namespace
    while (key := await read(partial(_an_open_one, app=app))) is not None:
        # One by its key until it has ended: to look for any, again and again, would cost more than the work.
        look = partial(rows_of, namespace=namespace, keys=[key])
        while not (await read(look))[key].ended:  # noqa: ASYNC110  # no database says when
            await asyncio.sleep(0.01)


def _an_open_one(connection: Connection, app: Duly) -> JobKey | None:
    waits = jobs.c.namespace == app.settings.namespace, jobs.c.state == JobState.scheduled.value
    found = connection.execute(select(jobs.c.topic, jobs.c.id).where(*waits).limit(1)).first()
    return None if found is None else JobKey(*found)
