"""
Transactions of users that stay open: what they have locked waits for them, and everything else goes on.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from duly import Duly, JobState
from duly.job import JobKey
from duly.record import outcomes as outcomes_module
from duly.record.idempotency import Expiry
from duly.record.marks import mark
from duly.record.outcomes import Outcomes, write_runs
from duly.record.retention import Retention
from duly.record.tables import attempts, idempotency, jobs
from tests.eventually import eventually
from tests.record.kit import now_ms, read_rows, row, write_rows
from tests.record.test_retention import Now
from tests.record.way.kit import commit, promised, rows_of, runs_of
from tests.record.way.test_outcomes import ended
from tests.record.working import working

OTHERS = 50
HOUR_S = 3_600
LOCK = "SELECT id FROM duly_jobs WHERE namespace = :namespace AND topic = 'mail' AND id = :id FOR UPDATE"
locking = pytest.mark.parametrize("migrated_url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:

        @app.handler("mail")
        async def mail(word: str) -> str:
            return f"{word}!"

        app.mail = mail
        yield app


@pytest.fixture
async def engine(migrated_url):
    """
    The user's own, with the isolation that its database begins with.
    """
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+asyncmy", "sqlite": "sqlite+aiosqlite"}
    kind, _, rest = migrated_url.partition(":")
    engine = create_async_engine(f"{drivers[kind]}:{rest}")
    yield engine
    await engine.dispose()


@pytest.fixture
def sessions(engine):
    return async_sessionmaker(engine)


async def lock(session, namespace, id_):
    assert id_ == await session.scalar(text(LOCK), {"namespace": namespace, "id": id_})


# -- what a transaction may hold --------------------------------------------------------------------------


async def repeat(app, session):
    assert not (await app.enqueue(app.mail.job("again"), id="held", session=session)).created


async def make(app, session):
    await app.enqueue(app.mail.job("made"), id="made", session=session)


async def replace(app, session):
    job = app.mail.job("replaced")
    assert (await app.enqueue(job, id="held", on_conflict="replace", session=session)).created


async def look_up(app, session):
    await lock(session, app.settings.namespace, "held")


async def take_snapshot(app, session):
    await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    await session.execute(select(jobs.c.id))


async def cancel_nothing(app, session):
    """
    Where there is no row, MariaDB would lock the gap where it might be.
    """
    await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    found = await (await app.promises()).cancel([JobKey("mail", "none")], session=session)
    assert [None] == found


@locking
@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("hold", [repeat, make, replace, look_up, take_snapshot, cancel_nothing])
async def test_an_open_transaction_keeps_up_no_other_job(app, sessions, hold, ending):
    await app.enqueue(app.mail.job("held"), id="held", delay=HOUR_S)
    before = await app.enqueue(app.mail.job("before"), id="before", delay=HOUR_S)
    async with sessions() as session, working(app):
        await hold(app, session)
        async with asyncio.timeout(20):
            single = [app.enqueue(app.mail.job(f"{at}"), id=f"single-{at}") for at in range(OTHERS)]
            sent = await asyncio.gather(*single)
            sent += await app.enqueue_many(
                [app.mail.job(f"{at}").options(id=f"many-{at}") for at in range(OTHERS)]
            )
            assert [f"{at}!" for at in range(OTHERS)] * 2 == [await job.result(timeout=60) for job in sent]
            late = await app.enqueue(app.mail.job("late"), delay=HOUR_S)
            for job in (before, late):
                await job.reschedule(delay=2 * HOUR_S)
                assert JobState.cancelled is await job.cancel()
            await late.requeue()
            assert "late!" == await late.result(timeout=60)
        await eventually(partial(written, app, *(job.id for job in sent), late.id))
        await getattr(session, ending)()
        # What the transaction held is right, too.
        await app.job("mail", "held").reschedule(delay=0)
        word = "replaced!" if (hold, ending) == (replace, "commit") else "held!"
        assert word == await app.job("mail", "held").result(timeout=60)
        await eventually(partial(written, app, "held"))
        if hold is make:
            made = await app.enqueue(app.mail.job("made later"), id="made")
            assert (ending == "rollback") == made.created
            assert ("made!" if ending == "commit" else "made later!") == await made.result(timeout=60)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_an_old_snapshot_of_sqlite_keeps_up_nobody(app, sessions):
    await app.enqueue(app.mail.job("first"), id="first", delay=HOUR_S)
    async with sessions() as session:
        await session.execute(text("BEGIN"))
        seen = (await session.execute(select(jobs.c.id))).all()
        async with working(app), asyncio.timeout(20):
            sent = await asyncio.gather(*(app.enqueue(app.mail.job(f"{at}")) for at in range(OTHERS)))
            assert [f"{at}!" for at in range(OTHERS)] == [await job.result(timeout=60) for job in sent]
            assert JobState.cancelled is await app.job("mail", "first").cancel()
            await eventually(partial(written, app, *(job.id for job in sent)))
        assert seen == (await session.execute(select(jobs.c.id))).all()


async def written(app, *ids):
    """
    Return whether the rows say that these jobs have succeeded.
    """
    record = await app.record()
    found = await record.database.read(
        lambda connection: connection.execute(
            select(jobs.c.id).where(jobs.c.id.in_(ids), jobs.c.state == JobState.succeeded.value)
        ).all()
    )
    return len(set(ids)) == len(found)


@locking
@pytest.mark.parametrize("hold", [repeat, replace, look_up])
async def test_a_job_that_ends_while_a_transaction_holds_it_is_written_when_that_ends(app, sessions, hold):
    held = await app.enqueue(app.mail.job("held"), id="held")
    async with sessions() as session:
        await hold(app, session)
        async with working(app):
            assert "held!" == await held.result(timeout=60)
            after = await app.enqueue(app.mail.job("after"), id="after")
            assert "after!" == await after.result(timeout=60)
            await eventually(partial(written, app, "after"))
            await session.commit()
            if hold is replace:
                # It ran as it was promised before, and runs once more as it is promised now.
                await eventually(partial(has_said, app, "held", "replaced!"), 60)
            await eventually(partial(written, app, "held"))


async def has_said(app, id_, word):
    assert word == await app.job("mail", id_).result(timeout=60)


@locking
async def test_a_repeat_in_a_transaction_locks_nothing(app, sessions, namespace):
    await app.enqueue(app.mail.job("held"), id="held", delay=HOUR_S)
    async with sessions() as session, sessions() as other:
        for word in ("again", "held"):
            await app.enqueue(app.mail.job(word), id="held", session=session)
            await app.enqueue_many([app.mail.job(word).options(id="held")], session=session)
        found = await other.scalar(text(f"{LOCK} NOWAIT"), {"namespace": namespace, "id": "held"})
        assert "held" == found


@locking
@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("hold", [make, replace])
async def test_a_call_for_a_job_that_is_held_waits_alone(app, sessions, hold, ending):
    await app.enqueue(app.mail.job("held"), id="held", delay=HOUR_S)
    name = "made" if hold is make else "held"
    async with sessions() as session:
        await hold(app, session)
        jobs_ = [(f"{at}", f"other-{at}") for at in range(OTHERS)] + [("mine", name)]
        calls = [
            asyncio.create_task(app.enqueue(app.mail.job(word), id=id_, delay=HOUR_S, on_conflict="replace"))
            for word, id_ in jobs_
        ]
        async with asyncio.timeout(20):
            assert OTHERS == sum([job.created for job in await asyncio.gather(*calls[:-1])])
            late = await asyncio.gather(
                *(app.enqueue(app.mail.job("late"), delay=HOUR_S) for _ in range(OTHERS))
            )
        assert all(job.created for job in late)
        assert not calls[-1].done()
        await getattr(session, ending)()
        async with asyncio.timeout(20):
            assert (await calls[-1]).created
        assert b'{"word":"mine"}' == (await read_rows((await app.record()).database))[name].payload


@locking
@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
async def test_a_change_of_a_job_that_is_held_comes_after_the_transaction(app, sessions, verb):
    held = await app.enqueue(app.mail.job("held"), id="held", delay=HOUR_S)
    async with sessions() as session:
        await look_up(app, session)
        options = {"delay": 2 * HOUR_S} if verb == "reschedule" else {}
        change = asyncio.create_task(getattr(held, verb)(**options))
        others = [await app.enqueue(app.mail.job("other"), delay=HOUR_S) for _ in range(5)]
        assert {JobState.cancelled} == {await other.cancel() for other in others}
        assert not change.done()
        await session.commit()
        await change
    assert (JobState.cancelled if verb == "cancel" else JobState.scheduled) is (await held.get()).state


# -- outcomes ---------------------------------------------------------------------------------------------


@locking
async def test_runs_of_a_job_that_is_locked_wait_aside_in_their_order(database, namespace, sessions):
    rows = [promised(f"{at:02}", namespace=namespace) for at in range(30)]
    held = promised("held", namespace=namespace)
    await commit(database, held, *rows)
    outcomes = Outcomes(database, namespace, generation=lambda: 1, most=10)
    async with sessions() as session:
        await lock(session, namespace, "held")
        outcomes.put(ended(held, "retried", JobState.scheduled, token=1, attempts=1, outcome=b"{}"))
        for at, each in enumerate(rows, 2):
            outcomes.put(ended(each, token=at))
        outcomes.put(ended(held, "buried", JobState.dead, token=99, attempts=2, outcome=b"{}"))

        async def others_written():
            found = await rows_of(database)
            assert {JobState.succeeded.value} == {found[each.id].state for each in rows}
            assert 2 == len(outcomes), "both runs of the job, which is locked, still count"

        await eventually(others_written)
        assert not outcomes.full
        assert JobState.scheduled.value == (await rows_of(database))["held"].state
        await session.rollback()
    assert 0 == await outcomes.finish(60)
    stored = (await rows_of(database))["held"]
    assert (JobState.dead.value, 2) == (stored.state, stored.attempts)
    assert [1, 99] == [run.token for run in await runs_of(database) if run.id == "held"]
    assert 32 == len(await runs_of(database))


@locking
async def test_what_waits_aside_fills_the_queue(database, namespace, sessions, monkeypatch, caplog):
    monkeypatch.setattr(outcomes_module, "TELL_S", 0.0)
    rows = [promised(f"{at:02}", namespace=namespace) for at in range(6)]
    await commit(database, *rows)
    room = []
    outcomes = Outcomes(database, namespace, generation=lambda: 1, most=5, room=lambda: room.append(1))
    async with sessions() as session:
        for each in rows:
            await lock(session, namespace, each.id)
        for at, each in enumerate(rows, 1):
            outcomes.put(ended(each, token=at))
        await eventually(lambda: "6 outcomes wait for rows that open transactions have locked" in caplog.text)
        assert outcomes.full
        assert 6 == await outcomes.finish(0.01), "the events of Redis tell them"
        await session.rollback()
    outcomes.put(ended(rows[0], token=1))
    assert 0 == await outcomes.finish(60)
    assert [1] == room
    assert {JobState.succeeded.value} == {each.state for each in (await rows_of(database)).values()}


@locking
async def test_endings_pass_over_locked_rows_or_wait_for_them(database, namespace, sessions):
    free, held, gone = (promised(id_, namespace=namespace) for id_ in ("free", "held", "gone"))
    counted = promised("counted", namespace=namespace)
    await commit(database, free, held, counted)
    again = ended(counted, "retried", JobState.scheduled, token=4, outcome=b"{}")
    runs = [(ended(each, token=at), 1) for at, each in enumerate((free, held, gone), 1)] + [(again, 1)]
    skip = partial(write_runs, namespace=namespace, runs=runs, skip_locked=True)
    async with sessions() as session:
        await lock(session, namespace, "held")
        await lock(session, namespace, "counted")
        assert {held.key, counted.key} == await database.write(skip)
        assert JobState.succeeded.value == (await rows_of(database))["free"].state
        waits = asyncio.create_task(database.write(partial(write_runs, namespace=namespace, runs=runs)))
        assert {held.key, counted.key} == await database.write(skip)
        assert not waits.done()
        await session.rollback()
        async with asyncio.timeout(20):
            assert frozenset() == await waits
    assert frozenset() == await database.write(skip)
    found = await rows_of(database)
    assert (JobState.succeeded.value, 1) == (found["held"].state, found["counted"].attempts)
    assert 4 == len(await runs_of(database))


# -- upkeep -----------------------------------------------------------------------------------------------


@locking
async def test_marks_pass_over_locked_rows(database, namespace, sessions):
    free, held = promised("free", namespace=namespace), promised("held", namespace=namespace)
    await commit(database, free, held)
    given = [(each.key, each.revision) for each in (free, held)]
    async with sessions() as session:
        await lock(session, namespace, "held")
        async with asyncio.timeout(10):
            await database.write(lambda connection: mark(connection, namespace, given, 1, {}))
        found = await rows_of(database)
        assert (None, held.relay_ms) == (found["free"].relay_ms, found["held"].relay_ms)


@locking
async def test_what_is_past_its_time_goes_but_for_what_is_locked(database, sessions):
    day_ms = 86_400_000
    old = partial(row, "n", changed_ms=now_ms() - 2 * day_ms, state=JobState.succeeded)
    await write_rows(database, *(old(id_) for id_ in ("a", "held", "b")), row("n", "open"))
    past = [{"namespace": "n", "name": name, "about": b"1", "until_ms": 1} for name in ("x", "held", "y")]
    kept = {"namespace": "n", "name": "later", "about": b"1", "until_ms": now_ms() + day_ms}
    await database.write(lambda connection: connection.execute(insert(idempotency), [*past, kept]) and None)
    tidy, expiry = Retention(database, "n", keep_ms=day_ms, clock=Now()), Expiry(database, "n", Now())
    ask = select(idempotency.c.name).where(idempotency.c.namespace == "n", idempotency.c.name == "held")
    async with sessions() as session:
        await lock(session, "n", "held")
        await lock(session, "n", "open")
        assert "held" == await session.scalar(ask.with_for_update())
        async with asyncio.timeout(20):
            assert (2, 2) == (await tidy.run_once(), await expiry.run_once())
        await session.rollback()
    assert {"held", "open"} == set(await read_rows(database))
    assert (1, 1) == (await tidy.run_once(), await expiry.run_once())
    left = await database.read(lambda connection: connection.scalars(select(idempotency.c.name)).all())
    assert ({"open"}, ["later"]) == (set(await read_rows(database)), left)
    assert [] == await database.read(lambda connection: connection.execute(select(attempts)).all())
