"""
Sessions of every driver that applications use: the verbs are part of their transactions.
"""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing

import psycopg
import psycopg2
import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from duly import Duly, JobState, QueueFull
from duly.record import lend
from tests.eventually import eventually
from tests.record.working import working

MANY = 600  #: jobs, more than one statement takes
LIMIT = 10_000
STRANGE = 'a "quoted" \\ one, {with} \' ä€ % :name NULL'


# -- kinds of sessions: each gives one, and commits or rolls back what was done with it -------------------


@asynccontextmanager
async def async_session(url, ending):
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        yield session
        await getattr(session, ending)()
    await engine.dispose()


@asynccontextmanager
async def async_connection(url, ending):
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        yield connection
        await getattr(connection, ending)()
    await engine.dispose()


@asynccontextmanager
async def session(url, ending):
    engine = create_engine(url)
    with Session(engine) as session:
        yield session
        getattr(session, ending)()
    engine.dispose()


@asynccontextmanager
async def connection(url, ending):
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
        getattr(connection, ending)()
    engine.dispose()


@asynccontextmanager
async def lent(url, ending):
    where = {"host": url.host, "port": url.port, "user": url.username}
    match url.drivername.partition("+")[2]:
        case "pysqlite":
            mine = sqlite3.connect(url.database)
        case "psycopg":
            mine = psycopg.connect(**where, dbname=url.database)
        case "psycopg2":
            mine = psycopg2.connect(**where, dbname=url.database)
        case _:
            mine = pymysql.connect(**where, database=url.database)
    with closing(mine):
        with lend(mine) as session:
            yield session
        getattr(mine, ending)()


DRIVERS = {
    "sqlite": {"aiosqlite": "async", "pysqlite": "blocking"},
    "postgresql": {"asyncpg": "async", "psycopg": "both", "psycopg2": "blocking"},
    "mysql": {"asyncmy": "async", "pymysql": "blocking"},
}
KINDS = {"async": [async_session, async_connection], "blocking": [session, connection, lent]}
KINDS["both"] = KINDS["async"] + KINDS["blocking"]
MATRIX = [
    pytest.param("mariadb" if name == "mysql" else name, driver, kind, id=f"{driver}-{kind.__name__}")
    for name, drivers in DRIVERS.items()
    for driver, kinds in drivers.items()
    for kind in KINDS[kinds]
]


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url, horizon="1m") as app:
        app.ran = []

        @app.handler("mail")
        async def mail(text: str) -> None:
            app.ran.append(text)

        # Compared with the queue, a record is written to: SQLite has one writer at a time.
        store = await app.store()
        await store.limit("mail", LIMIT)  # what waits is counted through the session, too
        app.mail = mail
        yield app


@pytest.mark.parametrize(("migrated_url", "driver", "kind"), MATRIX, indirect=["migrated_url"])
async def test_every_verb_is_part_of_the_transaction_of_every_driver(app, migrated_url, driver, kind):
    url = make_url(migrated_url)
    url = url.set(drivername=f"{url.get_backend_name()}+{driver}")
    for ending in ("rollback", "commit"):
        async with kind(url, ending) as session:
            one = await app.enqueue(app.mail.job("first"), id="one", session=session)
            assert one.created
            assert not (await app.enqueue(app.mail.job("kept"), id="one", session=session)).created
            other = await app.enqueue(
                app.mail.job(STRANGE), id="one", on_conflict="replace", delay=60, session=session
            )
            assert other.placed.revision > one.placed.revision
            new = [app.mail.job(STRANGE).options(id=str(n), delay=n % 2 * 3600) for n in range(MANY)]
            many = await app.enqueue_many(new, session=session)
            assert all(each.created for each in many)
            assert JobState.cancelled is await many[0].cancel(session=session)
            await many[0].requeue(session=session)
            assert JobState.cancelled is await many[2].cancel(session=session)
            await many[1].reschedule(delay=0, session=session)
            await one.reschedule(delay=0, session=session)
        if ending == "rollback":
            assert [None] * (MANY + 1) == await (await app.views()).get_many(
                [each.key for each in (one, *many)]
            )
    # Those that are even but one, which was cancelled, one that was moved, and the single one.
    async with working(app):
        await eventually(lambda: len(app.ran) == MANY // 2 + 1, within_s=60)
    assert {STRANGE} == set(app.ran)
    assert JobState.scheduled is (await many[3].get()).state


@pytest.mark.parametrize(("migrated_url", "driver", "kind"), MATRIX, indirect=["migrated_url"])
async def test_a_limit_is_kept_within_the_transaction_of_every_driver(app, migrated_url, driver, kind):
    url = make_url(migrated_url)
    await (await app.store()).limit("mail", 2)
    async with kind(url.set(drivername=f"{url.get_backend_name()}+{driver}"), "commit") as session:
        await app.enqueue(app.mail.job("a"), session=session)
        await app.enqueue(app.mail.job("b"), delay=3600, session=session)
        with pytest.raises(QueueFull):
            await app.enqueue(app.mail.job("c"), session=session)
