"""
Engines of SQLAlchemy that an application hands in: of every driver, on several event loops, and after forks.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import asynccontextmanager, closing, contextmanager
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from duly import Duly, JobState, UsageError
from duly.errors import RecordUnavailable, ServerUnsuitable
from duly.record import schema
from duly.record.database import Database
from tests.databases import MariaDB, PostgreSQL
from tests.pgbouncer import pgbouncer
from tests.record.working import working

JOBS = 30
ASYNC = {"sqlite": ["aiosqlite"], "postgresql": ["psycopg", "asyncpg"], "mariadb": ["asyncmy"]}
SYNC = {"sqlite": ["pysqlite"], "postgresql": ["psycopg", "psycopg2"], "mariadb": ["pymysql"]}
MATRIX = [
    pytest.param(kind, make, driver, id=f"{driver}-{word}")
    for word, make, drivers in (("async", create_async_engine, ASYNC), ("sync", create_engine, SYNC))
    for kind, each in drivers.items()
    for driver in each
]
every_engine = pytest.mark.parametrize(("migrated_url", "make", "driver"), MATRIX, indirect=["migrated_url"])
on_postgresql = pytest.mark.parametrize("migrated_url", ["postgresql"], indirect=True)


def named(url, driver):
    backend = "mariadb" if url.startswith("mysql") else url.partition(":")[0]
    return make_url(url).set(drivername=f"{backend}+{driver}")


@asynccontextmanager
async def engine_of(make, url, **options):
    """
    An engine that nobody but its owner disposes of.
    """
    engine = make(url, **options)
    yield engine
    disposed = engine.dispose()
    if disposed is not None:
        await disposed


def with_mail(app):
    @app.handler("mail")
    async def mail(number: int) -> int:
        return number + 1

    return mail


async def verbs(app, mail):
    """
    Every verb, with a worker; what it leaves is equal on both sides.
    """
    async with working(app):
        sent = [await app.enqueue(mail.job(number)) for number in range(5)]
        sent += await app.enqueue_many([mail.job(number) for number in range(JOBS)])
        results = [await job.result(timeout=60) for job in sent]
        assert [*range(1, 6), *range(1, JOBS + 1)] == results
        late = await app.enqueue(mail.job(1), delay=3600)
        await late.reschedule(delay=7200)
        assert JobState.cancelled is await late.cancel()
        await late.requeue()
        assert 2 == await late.result(timeout=60)
    report = await (await app.record()).reconcile(apply=False)
    assert 0 == sum(report.found.values())


@every_engine
async def test_a_record_works_on_the_pool_of_every_driver(valkey, namespace, migrated_url, make, driver):
    async with engine_of(make, named(migrated_url, driver)) as engine:
        seen = []
        event.listen(getattr(engine, "sync_engine", engine), "commit", seen.append)
        async with Duly(valkey.url, namespace=namespace, record=engine, horizon="1m") as app:
            await verbs(app, with_mail(app))
        assert seen  # its own events tell of what the record does
        # It is not disposed of: its pool has the connections that were made for the record.
        assert engine.pool.checkedin() > 0
        assert 0 == engine.pool.checkedout()


@every_engine
async def test_a_session_of_the_engine_that_was_handed_in_is_at_home(
    valkey, namespace, migrated_url, make, driver
):
    async with (
        engine_of(make, named(migrated_url, driver)) as engine,
        Duly(valkey.url, namespace=namespace, record=engine) as app,
    ):
        mail = with_mail(app)
        await app.record()
        for ending in ("rollback", "commit"):
            if make is create_engine:
                with Session(engine) as session:
                    job = await app.enqueue(mail.job(1), id="one", delay=60, session=session)
                    getattr(session, ending)()
            else:
                async with AsyncSession(engine) as session:
                    job = await app.enqueue(mail.job(1), id="one", delay=60, session=session)
                    await getattr(session, ending)()
            [found] = await (await app.views()).get_many([job.key])
            assert (ending == "commit") is (found is not None)


@pytest.mark.parametrize(
    ("make", "driver", "options"),
    [
        (create_async_engine, "psycopg", {"connect_args": {"prepare_threshold": None}}),
        (
            create_async_engine,
            "asyncpg",
            {
                "poolclass": NullPool,
                "connect_args": {
                    "statement_cache_size": 0,
                    "prepared_statement_cache_size": 0,
                    "prepared_statement_name_func": lambda: f"__{uuid4()}__",
                },
            },
        ),
        (create_engine, "psycopg", {"connect_args": {"prepare_threshold": None}}),
        (create_engine, "psycopg2", {}),
    ],
    ids=["psycopg-async", "asyncpg", "psycopg-sync", "psycopg2"],
)
async def test_an_engine_behind_a_pooler_will_do(valkey, namespace, postgresql, make, driver, options):
    url = postgresql.migrated()
    with pgbouncer(url) as through:
        async with (
            engine_of(make, named(through, driver), **options) as engine,
            Duly(valkey.url, namespace=namespace, record=engine, horizon="1m") as app,
        ):
            await verbs(app, with_mail(app))
    postgresql.drop(url)


def begin_by_handlers(engine):
    """
    Begin transactions as SQLAlchemy's page on SQLite says, for savepoints.
    """
    event.listen(engine, "connect", lambda found, _: setattr(found, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_handlers_that_begin_transactions_of_sqlite_may_stay(valkey, namespace, migrated_url):
    async with engine_of(create_engine, migrated_url) as engine:
        begin_by_handlers(engine)
        async with Duly(valkey.url, namespace=namespace, record=engine, horizon="1m") as app:
            await verbs(app, with_mail(app))


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("begun", [False, True], ids=["plain", "begun by a handler"])
@pytest.mark.parametrize(
    ("make", "driver"), [(create_engine, "pysqlite"), (create_async_engine, "aiosqlite")]
)
async def test_transactions_of_sqlite_begin_as_those_of_a_writer(migrated_url, make, driver, begun):
    async with engine_of(make, named(migrated_url, driver)) as engine:
        if begun:
            begin_by_handlers(getattr(engine, "sync_engine", engine))
        database = Database(engine)

        def others_may_write(_):
            with closing(sqlite3.connect(make_url(migrated_url).database, timeout=0)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    return False
            return True

        assert not await database.write(others_may_write)
        assert await database.read(others_may_write)
        await database.aclose()


@pytest.mark.parametrize(
    ("migrated_url", "make", "driver"),
    [
        ("postgresql", create_engine, "psycopg2"),
        ("postgresql", create_async_engine, "asyncpg"),
        ("mariadb", create_engine, "pymysql"),
        ("mariadb", create_async_engine, "asyncmy"),
    ],
    indirect=["migrated_url"],
)
async def test_an_engine_that_commits_each_statement_is_made_to_keep_transactions(migrated_url, make, driver):
    async with engine_of(make, named(migrated_url, driver), isolation_level="AUTOCOMMIT") as engine:
        database = Database(engine)

        def insert_and_fail(connection):
            connection.execute(text("INSERT INTO duly_api_keys VALUES ('n', 'k', '')"))
            raise LookupError

        with pytest.raises(LookupError):
            await database.write(insert_and_fail)
        if migrated_url.startswith("postgresql"):
            level = text("SHOW transaction_isolation")
            assert "read committed" == await database.read(lambda connection: connection.scalar(level))
        count = text("SELECT count(*) FROM duly_api_keys")
        assert 0 == await database.read(lambda connection: connection.scalar(count))
        await database.aclose()


@pytest.mark.parametrize(
    ("migrated_url", "driver"),
    [("postgresql", "psycopg2"), ("mariadb", "pymysql")],
    indirect=["migrated_url"],
)
async def test_a_transaction_sees_what_others_commit_meanwhile(migrated_url, driver):
    async with engine_of(
        create_engine, named(migrated_url, driver), isolation_level="REPEATABLE READ"
    ) as engine:
        database, count = Database(engine), text("SELECT count(*) FROM duly_positions")

        def look_twice(connection):
            first = connection.scalar(count)
            with engine.begin() as other:
                other.execute(text("INSERT INTO duly_positions VALUES ('n', 1, 'e', 1, 'n', 1)"))
            return first, connection.scalar(count)

        assert (0, 1) == await database.read(look_twice)
        await database.aclose()
        # The application's own transactions are as it made them.
        with engine.connect() as connection:
            assert "REPEATABLE READ" == connection.get_isolation_level()


# -- event loops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("migrated_url", "driver"),
    [("sqlite", "pysqlite"), ("postgresql", "psycopg2"), ("mariadb", "pymysql")],
    indirect=["migrated_url"],
)
def test_a_sync_engine_serves_several_loops_and_the_blocking_twin(valkey, namespace, migrated_url, driver):
    engine = create_engine(named(migrated_url, driver))
    app = Duly(valkey.url, namespace=namespace, record=engine)
    mail = with_mail(app)

    async def send(number):
        return (await app.enqueue(mail.job(number), id=str(number), delay=60)).created

    async def closing(number):
        async with app:
            return await send(number)

    assert asyncio.run(closing(1))
    assert asyncio.run(send(2))

    async def beside():
        there = asyncio.to_thread(asyncio.run, send(3))
        return await asyncio.gather(send(4), there, asyncio.to_thread(app.sync.enqueue, mail.job(5), id="5"))

    first, second, third = asyncio.run(beside())
    assert (True, True, True) == (first, second, third.created)
    app.sync.close()
    engine.dispose()


@on_postgresql
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_engine_is_refused_on_a_second_loop(valkey, namespace, migrated_url, driver):
    async with engine_of(create_async_engine, named(migrated_url, driver)) as engine:
        app = Duly(valkey.url, namespace=namespace, record=engine)
        async with app:
            await app.enqueue("mail", 1, delay=60)

            async def elsewhere():
                await app.enqueue("mail", 1, delay=60)

            with pytest.raises(UsageError, match="is used on another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere())
            with pytest.raises(UsageError, match=r"app\.sync has an event loop of its own"):
                await asyncio.to_thread(app.sync.enqueue, "mail", 1, delay=60)
            await app.enqueue("mail", 1, delay=60)


@on_postgresql
def test_an_async_engine_may_move_to_a_later_loop_once_it_was_disposed_of(valkey, namespace, migrated_url):
    engine = create_async_engine(named(migrated_url, "asyncpg"))
    app = Duly(valkey.url, namespace=namespace, record=engine)

    async def send(*, dispose):
        async with app:
            await app.enqueue("mail", 1, delay=60)
        if dispose:
            await engine.dispose()

    asyncio.run(send(dispose=True))
    asyncio.run(send(dispose=False))
    with pytest.raises(UsageError, match="belong to an event loop that has ended"):
        asyncio.run(send(dispose=True))
    engine.sync_engine.dispose(close=False)


@on_postgresql
async def test_an_async_engine_that_the_application_used_on_another_loop_is_refused(
    valkey, namespace, migrated_url
):
    engine = create_async_engine(named(migrated_url, "asyncpg"))

    async def use():
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    await asyncio.to_thread(asyncio.run, use())
    app = Duly(valkey.url, namespace=namespace, record=engine)
    with pytest.raises(UsageError, match="is used on another event loop"):
        await app.enqueue("mail", 1)
    await app.aclose()
    engine.sync_engine.dispose(close=False)


async def test_a_caller_who_is_cancelled_commits_nothing_later(migrated_url):
    driver = {"sqlite": "pysqlite", "postgresql": "psycopg2", "mysql": "pymysql"}[
        migrated_url.partition(":")[0]
    ]
    async with engine_of(create_engine, named(migrated_url, driver)) as engine:
        database = Database(engine)
        loop = asyncio.get_running_loop()
        began, goes_on = asyncio.Event(), threading.Event()

        def insert(connection):
            connection.execute(text("INSERT INTO duly_positions VALUES ('n', 1, 'e', 1, 'n', 1)"))
            loop.call_soon_threadsafe(began.set)
            goes_on.wait(60)

        task = asyncio.create_task(database.write(insert))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        goes_on.set()
        await database.aclose()
        with engine.connect() as connection:
            assert 0 == connection.scalar(text("SELECT count(*) FROM duly_positions"))


# -- forks ------------------------------------------------------------------------------------------------


@contextmanager
def forked(work):
    """
    Run *work* in a forked child, and yield what it printed and its exit code.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = ""
        try:
            said = str(work())
        except BaseException as error:  # noqa: BLE001  # it is told to the parent
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        yield answer.read()
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("migrated_url", "driver"),
    [("postgresql", "psycopg2"), ("mariadb", "pymysql")],
    indirect=["migrated_url"],
)
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_leaves_connections_to_its_parent(valkey, namespace, migrated_url, driver):
    engine = create_engine(named(migrated_url, driver))
    app = Duly(valkey.url, namespace=namespace, record=engine)
    assert app.sync.enqueue("mail", 1, id="parent", delay=60).created
    with forked(lambda: app.sync.enqueue("mail", 1, id="child", delay=60).created) as said:
        assert "True" == said
    # Those of the parent are still good.
    for number in range(5):
        assert app.sync.enqueue("mail", 1, id=str(number), delay=60).created
    assert JobState.scheduled is app.sync.job("mail", "child").get().state
    app.sync.close()
    engine.dispose()


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_is_refused_the_connections_to_a_file(valkey, namespace, migrated_url):
    engine = create_engine(migrated_url)
    app = Duly(valkey.url, namespace=namespace, record=engine)
    assert app.sync.enqueue("mail", 1, id="parent", delay=60).created
    send = lambda: app.sync.enqueue("mail", 1, id="child", delay=60).created  # noqa: E731
    with forked(send) as said:
        assert said.startswith("UsageError: this process was forked while the record's engine")
    engine.dispose()
    with forked(send) as said:
        assert "True" == said
    app.sync.close()
    engine.dispose()


# -- mistakes ---------------------------------------------------------------------------------------------


def sync_of_async(url):
    return create_async_engine(named(url, "asyncpg")).sync_engine


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (sync_of_async, "asyncpg of the record's engine needs an event loop"),
        (lambda _: create_engine("sqlite://"), "a record in memory remembers nothing"),
        (lambda url: Session(create_engine(named(url, "psycopg"))), "must be a URL, or an Engine"),
        (lambda _: 7, "must be a URL, or an Engine"),
    ],
    ids=["an async driver", "memory", "a session", "a number"],
)
async def test_what_cannot_be_a_record_is_refused(valkey, namespace, make, sentence):
    with pytest.raises(UsageError, match=sentence):
        await Duly(valkey.url, namespace=namespace, record=make("postgresql://u@127.0.0.1:1/x")).queue()


async def test_an_engine_of_another_database_is_refused(valkey, namespace):
    engine = create_engine("sqlite:///file.db")
    engine.dialect.name = "oracle"  # whose driver is not installed
    with pytest.raises(UsageError, match="cannot be kept through an engine of 'oracle'"):
        await Duly(valkey.url, namespace=namespace, record=engine).queue()


def test_the_size_of_a_pool_is_not_said_twice():
    with pytest.raises(UsageError, match="an engine, which has a pool of its own"):
        Duly(record=create_engine("sqlite:///file.db"), record_pool_size=7)


@pytest.mark.parametrize(("make", "driver"), [(create_engine, "psycopg2"), (create_async_engine, "asyncpg")])
async def test_a_server_that_is_away_is_named(make, driver):
    async with engine_of(make, f"postgresql+{driver}://u@127.0.0.1:1/x") as engine:
        database = Database(engine)
        with pytest.raises(RecordUnavailable, match="the record cannot be reached: "):
            await database.read(lambda connection: connection.scalar(text("SELECT 1")))
        await database.aclose()


@on_postgresql
@pytest.mark.parametrize(("make", "driver"), [(create_engine, "psycopg2"), (create_async_engine, "asyncpg")])
async def test_a_database_that_does_not_exist_is_named(migrated_url, make, driver):
    async with engine_of(make, named(migrated_url, driver).set(database="nowhere")) as engine:
        database = Database(engine)
        with pytest.raises(ServerUnsuitable, match='"nowhere" does not exist'):
            await database.read(lambda connection: connection.scalar(text("SELECT 1")))
        await database.aclose()


# -- outages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "make", "driver"),
    [
        (PostgreSQL, create_engine, "psycopg"),
        (PostgreSQL, create_engine, "psycopg2"),
        (PostgreSQL, create_async_engine, "psycopg"),
        (PostgreSQL, create_async_engine, "asyncpg"),
        (MariaDB, create_engine, "pymysql"),
        (MariaDB, create_async_engine, "asyncmy"),
    ],
)
async def test_a_worker_outlives_its_database_on_every_driver(valkey, namespace, server, make, driver):
    server = server()
    server.start()
    try:
        async with (
            engine_of(make, named(server.migrated(), driver)) as engine,
            Duly(valkey.url, namespace=namespace, record=engine, horizon="1m") as app,
        ):
            mail = with_mail(app)
            async with working(app):
                assert 2 == await (await app.enqueue(mail.job(1))).result(timeout=60)
                server.kill()
                with pytest.raises(RecordUnavailable):
                    await app.enqueue(mail.job(2))
                server.start()
                assert 4 == await (await app.enqueue(mail.job(3))).result(timeout=60)
    finally:
        server.stop()


# -- migrations -------------------------------------------------------------------------------------------


def test_tables_are_made_and_checked_through_an_engine(record_url):
    driver = {"sqlite": "pysqlite", "postgresql": "psycopg2", "mysql": "pymysql"}[
        record_url.partition(":")[0]
    ]
    engine = create_engine(named(record_url, driver))
    assert (None, schema.newest()) == schema.migrate(engine)
    assert [] == schema.check(engine)
    assert len(schema.partitions(engine)) > 5
    engine.dispose()


def test_tables_are_not_made_through_an_async_engine():
    with pytest.raises(UsageError, match="an async engine does nothing outside of an event loop"):
        schema.migrate(create_async_engine("sqlite+aiosqlite:///file.db"))
