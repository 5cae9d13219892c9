"""
Transactions that nobody waits for any more, and what a database refuses.
"""

from __future__ import annotations

import asyncio
import gc
import logging

import psycopg
import pytest
from sqlalchemy import insert, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.util import await_only

from duly.errors import RecordUnavailable, ServerUnsuitable
from duly.record import database as module
from duly.record.database import Database, sync_engine
from duly.record.tables import jobs
from tests.eventually import eventually
from tests.record.way.kit import commit, promised, rows_of


@pytest.fixture
def in_the_way(migrated_url):
    """
    Somebody else's transaction, which a row called `a` has to wait for.
    """
    engine = sync_engine(migrated_url)
    with engine.connect() as connection:
        connection.execute(insert(jobs), [promised("a", namespace="duly")._asdict()])
        yield connection
    engine.dispose()


async def at_rest(database):
    await eventually(lambda: database.engine.sync_engine.pool.checkedout() == 0, 60)


async def test_one_whose_caller_was_cancelled_commits_nothing_later(database, in_the_way):
    writing = asyncio.create_task(commit(database, promised("a", namespace="duly")))
    await eventually(lambda: database.engine.sync_engine.pool.checkedout() == 1, 60)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    in_the_way.rollback()
    await at_rest(database)
    assert {} == await rows_of(database)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_an_error_behind_the_back_of_a_cancelled_caller_prints_no_traceback(database, caplog):
    printed, began, goes_on = [], asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context["message"]))
    caplog.set_level(logging.DEBUG, "duly.record")

    def work(connection):
        began.set()
        await_only(goes_on.wait())
        raise OperationalError("", {}, ValueError("database is locked"))

    writing = asyncio.create_task(database.write(work))
    await began.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    del writing
    goes_on.set()
    await at_rest(database)
    await eventually(lambda: not database._in_threads, 60)
    gc.collect()
    told = [line for line in caplog.messages if "database is locked" in line]
    assert ([], ["a transaction failed after its caller gave up: database is locked"]) == (printed, told)


async def test_one_that_took_too_long_commits_nothing_later(database, in_the_way, monkeypatch):
    monkeypatch.setattr(module, "ANSWERS_WITHIN_S", 0.3)
    with pytest.raises(RecordUnavailable, match=r"no answer within|somebody else has locked"):
        await commit(database, promised("a", namespace="duly"))
    in_the_way.rollback()
    monkeypatch.undo()
    await at_rest(database)
    assert {} == await rows_of(database)


async def test_a_statement_that_never_fits_is_no_outage(database):
    with pytest.raises((ServerUnsuitable, SQLAlchemyError)) as told:
        await database.read(lambda connection: connection.execute(text("SELECT nothing FROM duly_jobs")))
    assert "nothing" in str(told.value)


@pytest.mark.parametrize("migrated_url", ["postgresql", "mariadb"], indirect=True)
async def test_a_right_that_is_missing_is_named(migrated_url):
    is_mysql = migrated_url.startswith("mysql")
    user = "'low'@'%'" if is_mysql else "low"
    password = "IDENTIFIED BY" if is_mysql else "LOGIN PASSWORD"
    engine = sync_engine(migrated_url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE USER {user} {password} 'low-word'"))
        if is_mysql:
            connection.execute(text(f"GRANT SELECT ON duly_jobs TO {user}"))
    low = make_url(migrated_url).set(username="low", password="low-word")
    database = Database(low.render_as_string(hide_password=False))
    try:
        with pytest.raises(ServerUnsuitable, match=r"the record does not allow it: .*denied") as told:
            await database.write(lambda connection: connection.execute(text("DELETE FROM duly_jobs")))
        assert "low-word" not in str(told.value)
    finally:
        await database.aclose()
        with engine.begin() as connection:
            connection.execute(text(f"DROP USER {user}"))
        engine.dispose()


@pytest.mark.parametrize("migrated_url", ["mariadb"], indirect=True)
async def test_a_wrong_password_is_no_outage(migrated_url):
    wrong = make_url(migrated_url).set(username="nobody", password="wrong-word")
    database = Database(wrong.render_as_string(hide_password=False))
    with pytest.raises(ServerUnsuitable, match="the record does not allow it"):
        await database.read(lambda connection: connection.execute(text("SELECT 1")))
    await database.aclose()


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ('connection failed: FATAL:  password authentication failed for user "x"', ServerUnsuitable),
        ('connection failed: FATAL:  database "x" does not exist', ServerUnsuitable),
        ("connection failed: FATAL:  sorry, too many clients already", RecordUnavailable),
        ("connection failed: FATAL:  the database system is starting up", RecordUnavailable),
    ],
)
def test_what_postgresql_says_at_the_door_is_told_apart(sentence, kind):
    error = OperationalError("", {}, psycopg.OperationalError(sentence))
    assert kind is type(module._said(error, in_doubt=False))
