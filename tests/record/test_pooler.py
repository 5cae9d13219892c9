"""
A record behind pgbouncer in transaction mode: nothing relies on which connection of the server it gets.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from duly import Duly, JobState
from duly.record import schema
from duly.record.database import Database
from duly.record.notices import Notices
from tests.eventually import eventually
from tests.pgbouncer import pgbouncer
from tests.record.working import working

JOBS = 400


@pytest.fixture
def empty_url(postgresql):
    url = postgresql.fresh()
    yield url
    postgresql.drop(url)


@pytest.fixture
def pooled_url(postgresql):
    url = postgresql.migrated()
    with pgbouncer(url) as through:
        yield through
    postgresql.drop(url)


async def test_verbs_and_workers_use_whatever_connection_they_get(valkey, namespace, pooled_url):
    async with Duly(valkey.url, namespace=namespace, record=pooled_url, horizon="1m") as app:

        @app.handler("mail")
        async def mail(number: int) -> int:
            return number + 1

        async with working(app):
            single = [app.enqueue(mail.job(number)) for number in range(JOBS)]
            sent = await asyncio.gather(*single)
            sent += await app.enqueue_many([mail.job(number) for number in range(JOBS)])
            assert [*range(1, JOBS + 1)] * 2 == [await job.result(timeout=60) for job in sent]
            for number in range(20):  # often enough for a statement to be prepared
                late = await app.enqueue(mail.job(number), delay=3600)
                await late.reschedule(delay=7200)
                assert JobState.cancelled is await late.cancel()
                await late.requeue()
                assert number + 1 == await late.result(timeout=60)
        report = await (await app.record()).reconcile(apply=False)
        assert 0 == sum(report.found.values())


async def test_sessions_behind_a_pooler_promise_jobs_too(valkey, namespace, pooled_url):
    url = pooled_url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_async_engine(url, connect_args={"prepare_threshold": None})
    async with Duly(valkey.url, namespace=namespace, record=pooled_url) as app:

        @app.handler("mail")
        async def mail(number: int) -> int:
            return number + 1

        async def promise(number: int):
            async with AsyncSession(engine) as session:
                job = await app.enqueue(mail.job(number), session=session)
                await session.commit()
                return job

        async with working(app):
            sent = await asyncio.gather(*map(promise, range(30)))
            assert [*range(1, 31)] == [await job.result(timeout=60) for job in sent]
    await engine.dispose()


async def test_statements_are_prepared_only_for_a_connection_with_a_process_to_itself(postgresql, pooled_url):
    direct = Database(postgresql.url(pooled_url.rpartition("/")[2]))
    pooled = Database(pooled_url)
    asked = text("SELECT count(*) FROM pg_prepared_statements")
    for database, prepares in ((direct, True), (pooled, False)):
        for _ in range(10):
            found = await database.read(lambda connection: connection.scalar(asked))
        assert prepares is (found > 0)
        await database.aclose()


async def test_nobody_listens_through_a_pooler(pooled_url, caplog):
    caplog.set_level(logging.INFO)
    database = Database(pooled_url)
    heard = []
    async with asyncio.timeout(60):
        await Notices(database, "ns", lambda: heard.append(1)).listen()
    assert "the record is behind a pooler" in caplog.text
    await database.aclose()


async def test_tables_are_migrated_through_a_pooler_by_one_at_a_time(empty_url):
    with pgbouncer(empty_url) as through, ThreadPoolExecutor(4) as threads:
        done = sorted(threads.map(schema.migrate, [through] * 4), key=lambda versions: versions[0] or "")
        assert [None, *[schema.newest()] * 3] == [before for before, _ in done]
        assert [] == schema.check(through)

        def unlocked():
            with psycopg.connect(empty_url) as connection:
                [[locks]] = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
                return locks == 0

        await eventually(unlocked)
