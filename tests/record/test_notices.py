"""
Notices of PostgreSQL: sent after the commits of sessions, and never in their transactions.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from duly import Duly, JobState
from duly.record.database import Database
from duly.record.dialects import CHANNEL
from duly.record.relay import Relay
from tests.eventually import eventually

HOUR_S = 3_600


@pytest.fixture
def migrated_url(postgresql):
    url = postgresql.migrated()
    yield url
    postgresql.drop(url)


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:
        yield app


@pytest.fixture
async def engine(migrated_url):
    engine = create_async_engine(migrated_url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    await engine.dispose()


@pytest.fixture
def sessions(engine):
    return async_sessionmaker(engine)


@pytest.fixture
def heard(migrated_url, namespace):
    """
    What PostgreSQL tells other processes of the namespace.
    """
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield lambda within_s: [
            notice.payload for notice in connection.notifies(timeout=within_s) if notice.payload == namespace
        ]


async def test_other_processes_are_told_after_the_commit_and_once_for_many(app, engine, sessions, heard):
    said = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *words: said.append(words[2]))
    commits = 100
    await app.enqueue("mail", 1, delay=HOUR_S)

    async def promise():
        async with sessions() as session:
            await app.enqueue("mail", 1, session=session)
            await session.commit()

    async with asyncio.timeout(60):
        for _ in range(commits // 5):
            await asyncio.gather(*(promise() for _ in range(5)))
    notices = await asyncio.to_thread(heard, 1)
    assert 0 < len(notices) < commits
    assert any("duly_jobs" in words for words in said)
    assert not any("notify" in words.lower() for words in said)
    async with sessions() as session:
        await app.enqueue("mail", 1, session=session)
        await session.rollback()
    assert [] == await asyncio.to_thread(heard, 0.3), "nothing was committed"


async def test_the_end_of_a_process_takes_no_notice_with_it(
    valkey, namespace, migrated_url, sessions, heard, monkeypatch
):
    monkeypatch.setattr("duly.record.notices.COALESCE_S", 0.5)
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app, sessions() as session:
        await app.enqueue("mail", 1, session=session)
        await session.commit()
    assert [namespace] == await asyncio.to_thread(heard, 1)


async def test_the_relay_of_another_process_is_told_of_a_session_s_commit(app, sessions, migrated_url):
    await app.enqueue("mail", 1, id="first", delay=HOUR_S)
    there, store = Database(migrated_url), (await app.record()).store
    relay = Relay(there, store, horizon_ms=10**9, generation=lambda: 1, scan_s=HOUR_S)
    looks = []
    relay.look = count(looks, relay.look)
    stop = asyncio.Event()
    task = asyncio.create_task(relay.run(stop))
    # It looks at its start, and once it listens.
    await eventually(lambda: len(looks) >= 2)
    async with sessions() as session:
        job = await app.enqueue("mail", 1, session=session)
        await session.commit()

    async def brought():
        assert (await job.get()).state is JobState.ready
        assert len(looks) > 2

    await eventually(brought)
    stop.set()
    await asyncio.wait_for(task, 60)
    await there.aclose()


def count(calls, method):
    async def call():
        calls.append(1)
        return await method()

    return call
