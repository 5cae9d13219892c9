"""
A handler's own SQL and the ending of its job: both are committed, once, or neither.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

import pytest
from sqlalchemy import text

from duly import Duly, Fixed, JobState, LeaseLost, UsageError, current_job
from duly.job import JobKey
from duly.services.heart import Heart
from duly.services.worker import Worker
from duly.views import Views
from tests.eventually import eventually
from tests.record.effects import ADD, effects_in
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


def add_blocking(session):
    job = current_job()
    session.execute(ADD, {"job": job.id, "attempt": job.attempt})


async def ended(effects, state=JobState.succeeded, id_="a"):
    await eventually(lambda: state == effects.row(id_).state, 30)


# -- together ---------------------------------------------------------------------------------------------


async def test_effect_and_ending_are_committed_together(app, effects):
    @app.handler("mail")
    async def mail() -> int:
        async with current_job().transaction() as session:
            await add(session)
            app.ran.append((effects.all(), effects.row().state))
            session.set_result(41)
            session.set_result(42)
        app.ran.append((effects.all(), effects.row().state, bytes(effects.row().outcome)))

    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        assert 42 == await job.result(timeout=30)
    assert [([], JobState.scheduled), ([("a", 1)], JobState.succeeded, b"42")] == app.ran
    row = effects.row()
    assert (b"42", 1, None) == (bytes(row.outcome), row.attempts, row.relay_ms)
    assert row.due_ms <= row.started_ms <= row.ended_ms
    # One row of the run, and none of the worker's own.
    assert ["acked"] == effects.runs()
    assert (JobState.succeeded, 1) == ((found := await job.get()).state, found.attempts)


async def test_a_block_of_a_plain_function_commits_both(app, effects):
    @app.handler("mail", run_in="thread")
    def mail() -> str:
        with current_job().transaction() as session:
            add_blocking(session)
            app.ran.append((effects.all(), effects.row().state))
            session.set_result("sent")
        app.ran.append((effects.all(), effects.row().state))
        return "sent"

    async with working(app):
        assert "sent" == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [([], JobState.scheduled), ([("a", 1)], JobState.succeeded)] == app.ran
    assert ["acked"] == effects.runs()


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_a_block_that_raises_leaves_nothing_and_the_job_runs_again(app, effects, run_in):
    def fail_first():
        if current_job().attempt == 1:
            raise ValueError("no")

    async def mail() -> None:
        async with current_job().transaction() as session:
            await add(session)
            fail_first()

    def mail_blocking() -> None:
        with current_job().transaction() as session:
            add_blocking(session)
            fail_first()

    app.handler("mail", run_in=run_in, backoff=SOON)(mail if run_in == "loop" else mail_blocking)
    async with working(app):
        await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [("a", 2)] == effects.all()
    assert 2 == effects.row().attempts
    await eventually(lambda: ["retried", "acked"] == effects.runs())


async def test_a_handler_may_begin_again_after_a_block_that_was_rolled_back(app, effects):
    @app.handler("mail")
    async def mail() -> None:
        with suppress(KeyError):
            async with current_job().transaction() as session:
                await add(session)
                session.set_result("of a block that is gone")
                raise KeyError
        async with current_job().transaction() as session:
            await add(session)

    async with working(app):
        assert await (await app.enqueue("mail", {}, id="a")).result(timeout=30) is None
    assert [("a", 1)] == effects.all()


async def test_a_job_that_is_sent_in_the_block_is_part_of_it(app, effects):
    @app.handler("mail", backoff=SOON)
    async def mail() -> None:
        async with current_job().transaction() as session:
            await app.enqueue("news", {}, id=f"n{current_job().attempt}", session=session)
            if current_job().attempt == 1:
                raise ValueError("no")

    @app.handler("news")
    async def news() -> None:
        app.ran.append(current_job().id)

    async with working(app):
        await app.enqueue("mail", {}, id="a")
        await eventually(lambda: ["n2"] == app.ran, 30)
    assert [] == effects.execute("SELECT id FROM duly_jobs WHERE id = 'n1'")


async def test_commit_and_rollback_of_the_session_end_savepoints_only(app, effects):
    @app.handler("mail", backoff=SOON)
    async def mail() -> None:
        async with current_job().transaction() as session:
            await add(session)
            await session.commit()
            app.ran.append(effects.all())
            await add(session)
            await session.rollback()
            async with session.begin_nested():
                await add(session)
            if current_job().attempt == 1:
                raise ValueError("no")

    async with working(app):
        await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [[], []] == app.ran
    assert [("a", 2)] * 2 == effects.all()


# -- the driver's own connection --------------------------------------------------------------------------


async def test_the_connection_of_the_driver_is_in_the_transaction(app, effects, migrated_url):
    @app.handler("mail", backoff=SOON)
    async def mail() -> None:
        async with current_job().transaction() as session:
            cursor = (await session.driver_connection()).cursor()
            if migrated_url.startswith("sqlite"):
                cursor = await cursor
            await cursor.execute(f"INSERT INTO effects VALUES ('a', {current_job().attempt})")  # noqa: S608
            await cursor.close()
            if current_job().attempt == 1:
                raise ValueError("no")

    async with working(app):
        await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [("a", 2)] == effects.all()


async def test_the_connection_of_a_blocking_driver_is_in_the_transaction(app, effects):
    @app.handler("mail", run_in="thread", backoff=SOON)
    def mail() -> None:
        with current_job().transaction() as session:
            cursor = session.driver_connection().cursor()
            cursor.execute(f"INSERT INTO effects VALUES ('a', {current_job().attempt})")  # noqa: S608
            cursor.close()
            if current_job().attempt == 1:
                raise ValueError("no")

    async with working(app):
        await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [("a", 2)] == effects.all()


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
async def test_who_ends_the_transaction_inside_the_block_is_told(app, effects, word):
    @app.handler("mail", max_attempts=1)
    async def mail() -> None:
        try:
            async with current_job().transaction() as session:
                await (await session.connection()).exec_driver_sql(word)
        except UsageError as error:
            app.ran.append(str(error))
            raise

    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        await ended(effects, JobState.dead)
    assert "the transaction of mail/a was ended inside its block" in app.ran[0]
    assert JobState.dead == (await job.get()).state


async def test_who_ends_the_connection_s_transaction_inside_the_block_is_told(app, effects):
    @app.handler("mail", max_attempts=1)
    async def mail() -> None:
        try:
            async with current_job().transaction() as session:
                await add(session)
                await (await session.connection()).rollback()
        except UsageError as error:
            app.ran.append(str(error))
            raise

    async with working(app):
        await app.enqueue("mail", {}, id="a")
        await ended(effects, JobState.dead)
    assert "the transaction of mail/a was ended inside its block" in app.ran[0]
    assert [] == effects.all()


# -- results ----------------------------------------------------------------------------------------------


async def test_a_result_that_cannot_be_stored_is_refused_inside_the_block(app, effects):
    @app.handler("mail", max_attempts=1)
    async def mail() -> int:
        async with current_job().transaction() as session:
            await add(session)
            session.set_result(object())

    async with working(app):
        await app.enqueue("mail", {}, id="a")
        await ended(effects, JobState.dead)
    assert [] == effects.all()


async def test_a_result_comes_too_late_after_the_block(app, effects):
    @app.handler("mail")
    async def mail() -> int:
        async with current_job().transaction() as session:
            session.set_result(1)
        with pytest.raises(UsageError, match="given inside its block"):
            session.set_result(2)
        app.ran.append(True)

    async with working(app):
        assert 1 == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [True] == app.ran


async def test_hooks_are_told_the_result_that_was_given(app, effects):
    told = []

    @app.on_success
    async def note(job, result):
        told.append((job.id, result))

    @app.handler("mail")
    async def mail() -> int:
        async with current_job().transaction() as session:
            session.set_result(7)

    async with working(app):
        assert 7 == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
        await eventually(lambda: [("a", 7)] == told)


# -- after the block --------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_a_failure_after_the_block_changes_nothing(app, effects, caplog, run_in):
    async def mail() -> int:
        async with current_job().transaction() as session:
            await add(session)
            session.set_result(1)
        raise ValueError("afterwards")

    def mail_blocking() -> int:
        with current_job().transaction() as session:
            add_blocking(session)
            session.set_result(1)
        raise ValueError("afterwards")

    app.handler("mail", run_in=run_in)(mail if run_in == "loop" else mail_blocking)
    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        assert 1 == await job.result(timeout=30)
    assert (JobState.succeeded, 1) == ((found := await job.get()).state, found.attempts)
    assert [("a", 1)] == effects.all()
    [told] = [each for each in caplog.records if "has succeeded with its transaction" in each.message]
    assert logging.WARNING == told.levelno
    assert "afterwards" in told.message


async def test_another_result_than_was_given_is_told(app, effects, caplog):
    @app.handler("mail")
    async def mail() -> int:
        async with current_job().transaction() as session:
            session.set_result(1)
        return 2

    async with working(app):
        assert 1 == await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert 1 == sum("returned another result" in each.message for each in caplog.records)


async def test_a_run_whose_time_is_over_after_its_block_has_succeeded(app, effects):
    @app.handler("mail", ttr=0.5)
    async def mail() -> int:
        async with current_job().transaction() as session:
            await add(session)
            session.set_result(1)
        await asyncio.Event().wait()

    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        assert 1 == await job.result(timeout=30)
    assert [("a", 1)] == effects.all()
    assert JobState.succeeded == (await job.get()).state


async def test_a_run_has_one_transaction_that_commits(app, effects):
    @app.handler("mail")
    async def mail() -> None:
        async with current_job().transaction():
            with pytest.raises(UsageError, match="in a transaction already"):
                async with current_job().transaction():
                    pass
        with pytest.raises(UsageError, match="has ended with its transaction"):
            async with current_job().transaction():
                pass
        app.ran.append(True)

    async with working(app):
        await (await app.enqueue("mail", {}, id="a")).result(timeout=30)
    assert [True] == app.ran


# -- the fence --------------------------------------------------------------------------------------------

#: What may have become of a row, and what its run is told.
CHANGES = {
    "ended": ("UPDATE duly_jobs SET state = 4 WHERE id = 'a'", "has ended in the record already"),
    "cancelled": ("UPDATE duly_jobs SET state = 5 WHERE id = 'a'", "has ended in the record already"),
    "replaced": ("UPDATE duly_jobs SET revision = revision + 1 WHERE id = 'a'", "was changed in the record"),
}


def change_row(effects, words):
    """
    Change the row of a job that runs, behind the back of its queue.
    """
    # Before that the relay would have the queue stop what does not fit its row.
    while effects.row().relay_ms is not None:
        time.sleep(0.005)
        assert not current_job().cancelled
    if words:
        effects.execute(words)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_a_run_that_does_not_count_is_stopped_before_it_does_anything(
    app, effects, caplog, change, run_in
):
    words, told = CHANGES[change]

    async def mail() -> None:
        await asyncio.to_thread(change_row, effects, words)
        with pytest.raises(LeaseLost, match=told):
            async with current_job().transaction():
                app.ran.append("inside")
        app.ran.append(current_job().cancelled)
        with pytest.raises(LeaseLost, match="told to stop"):
            async with current_job().transaction():
                app.ran.append("inside")

    def mail_blocking() -> None:
        change_row(effects, words)
        try:
            with current_job().transaction():
                app.ran.append("inside")
        finally:
            app.ran.append(current_job().cancelled)

    app.handler("mail", run_in=run_in)(mail if run_in == "loop" else mail_blocking)
    async with working(app):
        await app.enqueue("mail", {}, id="a")
        await eventually(lambda: any("lost the lease on mail/a" in each.message for each in caplog.records))
    assert [True] == app.ran
    assert [] == effects.runs()


@pytest.mark.parametrize("change", CHANGES)
async def test_a_run_that_does_not_count_any_more_is_rolled_back(app, effects, caplog, change, migrated_url):
    words, told = CHANGES[change]

    @app.handler("mail")
    async def mail() -> None:
        await asyncio.to_thread(change_row, effects, "")
        with pytest.raises(LeaseLost, match=told):
            async with current_job().transaction() as session:
                await add(session)
                if migrated_url.startswith("sqlite"):
                    await session.execute(text(words))  # nobody else can write
                else:
                    await asyncio.to_thread(effects.execute, words)
        app.ran.append(True)

    async with working(app):
        await app.enqueue("mail", {}, id="a")
        await eventually(lambda: any("lost the lease on mail/a" in each.message for each in caplog.records))
    assert [] == effects.all()
    assert [] == effects.runs()
    assert [True] == app.ran


async def test_a_job_that_is_cancelled_during_its_block_leaves_no_effect(app, effects, migrated_url):
    inside = asyncio.Event()

    @app.handler("mail")
    async def mail() -> None:
        async with current_job().transaction() as session:
            await add(session)
            inside.set()
            await asyncio.Event().wait()

    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        await inside.wait()
        await job.cancel()
        await ended(effects, JobState.cancelled)
    assert [] == effects.all()


@pytest.fixture
def deaf_workers(monkeypatch):
    """
    A way to have no worker extend a lease any more, nor hear that it was lost.
    """
    deaf = []
    beat, stop = Heart.run_once, Worker.stop_run

    async def run_once(heart, store):
        return 0 if deaf else await beat(heart, store)

    def stop_run(worker, member, token):
        if not deaf:
            stop(worker, member, token)

    monkeypatch.setattr(Heart, "run_once", run_once)
    monkeypatch.setattr(Worker, "stop_run", stop_run)
    return deaf


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_of_two_runs_at_once_one_has_its_effect(
    valkey, namespace, migrated_url, effects, deaf_workers, run_in
):
    began = []

    def app_of(number):
        app = Duly(valkey.url, namespace=namespace, record=migrated_url, lease=0.3, concurrency=1)

        async def mail() -> int:
            began.append(number)
            if len(began) == 1:
                deaf_workers.append(True)
            # On SQLite the second one waits before its block, for the end of the first.
            async with current_job().transaction() as session:
                await session.execute(ADD, {"job": "a", "attempt": number})
                await eventually(lambda: len(began) > 1, 30)
                session.set_result(number)

        def mail_blocking() -> int:
            began.append(number)
            if len(began) == 1:
                deaf_workers.append(True)
            with current_job().transaction() as session:
                session.execute(ADD, {"job": "a", "attempt": number})
                while len(began) == 1:
                    time.sleep(0.005)
                session.set_result(number)

        app.handler("mail", max_crashes=100, run_in=run_in)(mail if run_in == "loop" else mail_blocking)
        return app

    async with app_of(1) as one, app_of(2) as two, working(one), working(two):
        job = await one.enqueue("mail", {}, id="a")
        await ended(effects)
        await eventually(lambda: len(began) > 1)
        [(_, winner)] = effects.all()
        assert str(winner).encode() == bytes(effects.row().outcome)
        assert job.id == "a"
    assert [("a", winner)] == effects.all()
    assert 1 == effects.runs().count("acked")


async def test_a_lease_that_was_lost_after_the_commit_is_no_failure(
    valkey, namespace, migrated_url, effects, deaf_workers, caplog
):
    caplog.set_level(logging.INFO, "duly.worker")
    # Full with one job, so that the same worker does not claim it again.
    app = Duly(valkey.url, namespace=namespace, record=migrated_url, lease=0.3, concurrency=1)

    @app.handler("mail", max_crashes=100)
    async def mail() -> None:
        async with current_job().transaction() as session:
            await add(session)
        deaf_workers.append(True)
        store = await app.store()
        await eventually(lambda: has_run_out(store), 30)

    async def has_run_out(store):
        return (await Views(store).get(JobKey("mail", "a"))).state != JobState.running

    async with app, working(app):
        await app.enqueue("mail", {}, id="a")
        await eventually(lambda: "the record has it" in caplog.text, 30)
    assert [("a", 1)] == effects.all()
    assert ["acked"] == effects.runs()
    assert JobState.succeeded == effects.row().state
