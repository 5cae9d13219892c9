"""
A handler's transaction, and what goes wrong around its commit.
"""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from duly import Duly, Fixed, JobState, LeaseLost, RecordUnavailable, current_job
from duly.record import transactionpools, transactionsteps
from duly.record.database import Database
from duly.record.transactionpools import TransactionPools
from tests.eventually import eventually
from tests.record.effects import ADD, effects_in
from tests.record.wire import Wire
from tests.record.working import working

SOON = Fixed(0.01)


@pytest.fixture
def effects(migrated_url):
    with effects_in(migrated_url) as effects:
        yield effects


@pytest.fixture
async def app(valkey, namespace, migrated_url, effects):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url, lease=2) as app:
        app.ran = []
        yield app


async def add(session):
    job = current_job()
    await session.execute(ADD, {"job": job.id, "attempt": job.attempt})


def handle(app, run_in, inside=lambda: None):
    """
    Add a handler with one effect, which notes how its blocks end.
    """

    def note(error):
        app.ran.append(type(error).__name__ if error else "committed")

    async def mail() -> str:
        try:
            async with current_job().transaction() as session:
                await add(session)
                session.set_result("sent")
                inside()
        except Exception as error:
            note(error)
            raise
        note(None)
        return "sent"

    def mail_blocking() -> str:
        try:
            with current_job().transaction() as session:
                session.execute(ADD, {"job": current_job().id, "attempt": current_job().attempt})
                session.set_result("sent")
                inside()
        except Exception as error:
            note(error)
            raise
        note(None)
        return "sent"

    app.handler("mail", run_in=run_in, backoff=SOON)(mail if run_in == "loop" else mail_blocking)


# -- a commit whose answer is lost ------------------------------------------------------------------------


#: There is no wire to SQLite.
over_a_wire = pytest.mark.parametrize("migrated_url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
async def wire(app, migrated_url):
    """
    What a worker's transactions go through, and nothing else of its record.
    """
    wire = Wire(migrated_url)
    record = await app.record()
    database = Database(wire.url)
    record.transactions = TransactionPools(database, record.store.namespace)
    yield wire
    await record.transactions.aclose()
    await database.aclose()
    wire.close()


@over_a_wire
@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_a_commit_whose_answer_was_lost_is_found_in_the_row(app, effects, wire, run_in):
    handle(app, run_in, lambda: wire.cut("after"))
    async with working(app):
        assert "sent" == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert (["committed"], 1) == (app.ran, wire.cuts)
    assert [("a", 1)] == effects.all()
    assert ["acked"] == effects.runs()


@over_a_wire
@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_a_commit_that_did_not_arrive_is_made_by_the_next_run(app, effects, wire, run_in):
    handle(app, run_in, lambda: current_job().attempt == 1 and wire.cut("before"))
    async with working(app):
        assert "sent" == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert ([RecordUnavailable.__name__, "committed"], 1) == (app.ran, wire.cuts)
    assert [("a", 2)] == effects.all()


@over_a_wire
async def test_a_commit_without_an_answer_is_found_in_the_row(app, effects, wire, monkeypatch):
    monkeypatch.setattr(transactionsteps, "ANSWERS_WITHIN_S", 1.0)
    handle(app, "loop", lambda: wire.cut("silent"))
    async with working(app):
        assert "sent" == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert (["committed"], 1) == (app.ran, wire.cuts)
    assert [("a", 1)] == effects.all()


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_a_commit_that_fails_is_settled_by_the_row(app, effects, monkeypatch, run_in, done):
    commit = Connection._commit_impl
    faults = []

    def fail_once(connection):
        if current_is_handler() and not faults:
            faults.append(1)
            if done:
                commit(connection)
            raise OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))
        commit(connection)

    def current_is_handler():
        try:
            return current_job().in_transaction
        except ValueError:
            return False

    monkeypatch.setattr(Connection, "_commit_impl", fail_once)
    handle(app, run_in)
    async with working(app):
        await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [("a", 1 if done else 2)] == effects.all()
    assert (["committed"] if done else [app.ran[0], "committed"]) == app.ran


@over_a_wire
async def test_an_unknown_commit_that_somebody_else_was_before_is_lost(app, effects, wire, caplog):
    """
    The commit did not arrive, and another run ended the job before the row was read.
    """

    def cut():
        wire.cut("before")

    look = transactionsteps.Steps._look

    def look_late(steps):
        effects.execute("UPDATE duly_jobs SET state = 4 WHERE id = 'a'")
        return look(steps)

    handle(app, "loop", cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactionsteps.Steps, "_look", look_late)
        async with working(app):
            await app.enqueue("mail", {}, id="a")
            await eventually(lambda: [LeaseLost.__name__] == app.ran)
            await eventually(lambda: "lost the lease on mail/a" in caplog.text)
    assert [] == effects.all()


async def test_what_fails_behind_the_commit_is_no_failure_of_the_job(app, effects, monkeypatch):
    """
    For instance a relay that cannot be told, because its event loop is closed.
    """

    def fail():
        app.ran.append("told")
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(transactionsteps, "commit_hints", lambda _: {fail})
    handle(app, "loop")
    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        assert "sent" == await job.result(timeout=30)
    assert ["told", "RuntimeError"] == app.ran
    assert [("a", 1)] == effects.all()
    assert JobState.succeeded == (await job.get()).state


# -- cancellation -----------------------------------------------------------------------------------------


async def test_a_run_that_is_stopped_during_its_commit_has_succeeded(app, effects, monkeypatch):
    write = transactionsteps.write_ending

    def write_slowly(connection, namespace, run):
        tasks[0].cancel()
        return write(connection, namespace, run)

    tasks = []
    monkeypatch.setattr(transactionsteps, "write_ending", write_slowly)

    @app.handler("mail")
    async def mail() -> int:
        tasks.append(asyncio.current_task())
        async with current_job().transaction() as session:
            await add(session)
            session.set_result(1)

    async with working(app):
        assert 1 == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [("a", 1)] == effects.all()
    assert JobState.succeeded == effects.row().state


SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) "
    "SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(5)",
    "mysql": "SELECT sleep(5)",
}


async def test_a_statement_that_is_cancelled_leaves_nothing_behind(app, effects, migrated_url):
    @app.handler("mail", max_attempts=1)
    async def mail() -> None:
        async with current_job().transaction() as session:
            await add(session)
            async with asyncio.timeout(0.05):
                await session.execute(text(SLOW[session.get_bind().dialect.name]))

    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        await eventually(lambda: JobState.dead == effects.row().state, 30)
        # Nothing holds a lock on what it did.
        effects.execute("UPDATE duly_jobs SET lateness_ms = 7 WHERE id = 'a'")
    assert [] == effects.all()
    assert JobState.dead == (await job.get()).state


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_more_blocks_at_once_than_connections_all_commit(app, effects, run_in, monkeypatch):
    monkeypatch.setattr(transactionpools, "KEPT", 2)
    monkeypatch.setattr(transactionpools, "MORE", 1)
    monkeypatch.setattr(transactionpools, "POOL_WAITS_S", 0.05)
    handle(app, run_in)
    async with working(app):
        jobs = [await app.enqueue("mail", {}, id=str(number)) for number in range(60)]
        for job in jobs:
            assert "sent" == await job.result(timeout=60)
    assert [(str(number), 1) for number in range(60)] == sorted(effects.all(), key=lambda each: int(each[0]))
