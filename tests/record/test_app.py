"""
An app with a record: what is promised is committed first, by duly or with what else its caller commits.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duly import Duly, Unsupported
from duly.connection import Link
from duly.errors import (
    Conflict,
    JobCancelled,
    JobExists,
    JobNotFound,
    LayoutMismatch,
    RecordUnavailable,
    ServerUnsuitable,
    StoreUnavailable,
    UsageError,
)
from duly.job import JobKey, JobState
from duly.newjob import Limits, new_job
from duly.record.database import sync_engine
from duly.record.tables import generations, jobs
from duly.views import Views
from tests.eventually import eventually
from tests.servers import Server, binary

LATER = datetime(2199, 1, 1, tzinfo=UTC)
orders = Table("orders", MetaData(), Column("number", Integer, primary_key=True))


class Relay:
    """
    Notes what it was given.
    """

    def __init__(self):
        self.pushed, self.hints = [], 0

    async def push(self, rows):
        self.pushed += rows

    def hint(self):
        self.hints += 1


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    app = Duly(valkey.url, namespace=namespace, record=migrated_url)
    yield app
    await app.aclose()
    await asyncio.to_thread(app.sync.close)


@pytest.fixture
async def relay(app):
    record = await app.record()
    record.relay = Relay()
    return record.relay


@pytest.fixture
def engine(migrated_url):
    engine = sync_engine(migrated_url)
    orders.metadata.drop_all(engine)
    orders.metadata.create_all(engine)
    yield engine
    orders.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
async def sessions(app):
    return async_sessionmaker((await app.record()).database.engine)


async def rows(app):
    record = await app.promises()
    mine = jobs.c.namespace == app.settings.namespace
    return await record.database.read(
        lambda connection: connection.execute(select(jobs).where(mine).order_by(jobs.c.id)).all()
    )


# -- by itself --------------------------------------------------------------------------------------------


async def test_calls_of_the_store_are_refused_in_a_sentence(app):
    queue = await app.queue()
    with pytest.raises(
        Unsupported, match=r"^a record has no call claim: it is one of the store's, `await app\.store"
    ):
        await queue.claim("mail", worker="w", limit=1)
    with pytest.raises(AttributeError, match="'WholeRecord' object has no attribute 'clam'"):
        await queue.clam("mail")


async def test_a_job_is_committed_and_then_told_to_redis(app, relay):
    job = await app.enqueue("mail", {"to": "ada"}, id="a", due_at=LATER)
    [row] = await rows(app)
    assert (b'{"to":"ada"}', job.placed.revision) == (row.payload, row.revision)
    assert [row] == relay.pushed
    assert (True, LATER) == (job.created, job.due_at)


async def test_what_is_sent_again_is_kept_replaced_or_refused(app, relay):
    await app.enqueue("mail", 1, id="a", due_at=LATER)
    assert not (await app.enqueue("mail", 2, id="a", due_at=LATER)).created
    assert (await app.enqueue("mail", 2, id="a", due_at=LATER, on_conflict="replace")).created
    with pytest.raises(JobExists):
        await app.enqueue("mail", 3, id="a", on_conflict="raise")
    assert [b"1", b"2"] == [row.payload for row in relay.pushed]


async def test_many_have_an_outcome_each(app, relay):
    many = [new_job("mail", number, Limits()).options(id=str(number % 600)) for number in range(700)]
    outcomes = await app.enqueue_many([*many, many[0].options(id="no/t")])
    assert [True] * 600 + [False] * 100 == [outcome.created for outcome in outcomes[:-1]]
    assert isinstance(outcomes[-1], UsageError)
    assert 600 == len(await rows(app)) == len(relay.pushed)


async def test_awaited_calls_share_transactions(app, relay):
    record = await app.record()
    await asyncio.gather(*(app.enqueue("mail", number) for number in range(100)))
    assert 2 == record.commits.transactions
    assert 100 == len(relay.pushed)


async def test_a_job_that_redis_does_not_hold_is_found_moved_and_ended(app, relay):
    job = await app.enqueue("mail", {"to": "ada"}, id="a", due_at=LATER, priority="high", context={"x": 1})
    found = await job.get()
    assert (JobState.scheduled, LATER, "high") == (found.state, found.due_at, found.priority)
    assert {"x": 1} == found.envelope.context
    moved = await job.reschedule(delay=3_600)
    assert moved.revision > job.placed.revision
    with pytest.raises(Conflict):
        await job.requeue()
    assert JobState.cancelled is await job.cancel()
    assert JobState.cancelled is await job.cancel()
    with pytest.raises(Conflict):
        await job.reschedule(delay=1)
    assert (await job.requeue()).revision > moved.revision
    told = [(row.state, row.revision) for row in relay.pushed]
    assert [0, 0, JobState.cancelled, 0] == [state for state, _ in told]
    assert sorted(told, key=lambda each: each[1]) == told  # in the order of their revisions


async def test_the_result_of_a_job_that_redis_does_not_hold_is_waited_for(app, relay):
    job = await app.enqueue("mail", 1, id="a", due_at=LATER)
    waiting = asyncio.create_task(job.result(timeout=60))
    with pytest.raises(TimeoutError):
        await job.result(timeout=0.1)
    await job.cancel()
    with pytest.raises(JobCancelled):
        await waiting
    with pytest.raises(JobNotFound):
        await app.job("mail", "b").result()


async def test_purging_a_topic_ends_what_redis_does_not_hold(app, relay, monkeypatch):
    monkeypatch.setattr("duly.record.stored.AT_ONCE", 2)
    await app.enqueue_many([_new(str(number)).options(due_at=LATER) for number in range(5)])
    other = await app.enqueue("sms", 1, due_at=LATER)
    assert 5 == await app.purge("mail")
    assert 0 == await app.purge("mail")
    assert [JobState.scheduled, JobState.cancelled] == [
        (await job.get()).state for job in (other, app.job("mail", "4"))
    ]


async def test_no_such_job_is_said_as_ever(app):
    job = app.job("mail", "none")
    for verb in (job.get, job.cancel, job.requeue):
        with pytest.raises(JobNotFound):
            await verb()
    with pytest.raises(JobNotFound):
        await job.reschedule(delay=1)


async def test_what_was_sent_before_there_was_a_record_can_still_be_moved(app, valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as before:
        for id_ in "abc":
            await before.enqueue("mail", 1, id=id_, due_at=LATER)
    assert LATER == (await app.job("mail", "a").get()).due_at
    await app.job("mail", "a").reschedule(delay=60)
    assert [JobState.cancelled] * 2 == await (await app.queue()).cancel([JobKey("mail", id_) for id_ in "bc"])
    assert "requeued" == (await app.job("mail", "b").requeue()).word
    assert [] == await rows(app)


async def test_redis_going_away_does_not_refuse_a_job(migrated_url, namespace):
    server = Server(binary("valkey")).start()
    app = Duly(server.url, namespace=namespace, record=migrated_url)
    try:
        await app.queue()
        server.kill()
        job = await app.enqueue("mail", 1, id="a", due_at=LATER)
        assert JobState.cancelled is await job.cancel()
        assert 1 == len(await rows(app))
    finally:
        await app.aclose()
        server.stop()


async def test_redis_being_away_from_the_beginning_does_not_refuse_a_job(migrated_url, namespace, engine):
    server = Server(binary("valkey")).start()
    server.kill()
    app = Duly(server.url, namespace=namespace, record=migrated_url)
    try:
        first = await app.enqueue("mail", 1, id="a", delay=3600)
        others = await app.enqueue_many([_new(id_).options(delay=3600) for id_ in "bc"])
        with engine.begin() as connection:
            await app.enqueue("mail", 1, id="d", delay=3600, session=connection)
        assert [True] * 3 == [job.created for job in (first, *others)]
        assert JobState.cancelled is await first.cancel()
        assert list("abcd") == [row.id for row in await rows(app)]
        server.start()
        record = await app.record()
        await record.bring()
        found = await Views(record.store).get_many([JobKey("mail", id_) for id_ in "abcd"])
        assert ["cancelled", *["scheduled"] * 3] == [job.state.name for job in found]
    finally:
        await app.aclose()
        server.stop()


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)  # it is the server that matters
async def test_a_server_that_comes_back_is_looked_at_before_it_is_used(migrated_url, namespace):
    server = Server(binary("valkey")).start()
    async with Duly(server.url, namespace=namespace, shards=2) as other:
        await other.queue()
    server.kill()
    app = Duly(server.url, namespace=namespace, record=migrated_url)
    app.handler("mail")(lambda: None)
    try:
        await app.enqueue("mail", 1, id="a", due_at=LATER)
        server.start()
        for use in (app.record, app.store, app.work):
            with pytest.raises(LayoutMismatch, match="has shard count 2"):
                await use()
        assert ["a"] == [row.id for row in await rows(app)]
    finally:
        await app.aclose()
        server.stop()


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)  # likewise
async def test_a_server_that_refuses_is_not_taken_for_one_that_is_away(migrated_url, namespace):
    server = Server(binary("valkey")).start()
    admin = Link(server.url)
    await admin.call("CONFIG", "SET", "requirepass", "secret")
    await admin.aclose()
    app = Duly(server.url, namespace=namespace, record=migrated_url)
    try:
        with pytest.raises(ServerUnsuitable, match="password in the URL"):
            await app.enqueue("mail", 1, id="a", due_at=LATER)
    finally:
        await app.aclose()
        server.stop()


# -- in the caller's transaction --------------------------------------------------------------------------


async def test_a_rollback_leaves_nothing_and_a_commit_is_a_promise(app, relay, sessions, engine):
    for ending, expected in (("rollback", ([], 0)), ("commit", (list("abc"), 1))):
        async with sessions() as session:
            await session.execute(insert(orders).values(number=1))
            job = await app.enqueue("mail", 1, id="a", session=session)
            many = await app.enqueue_many([_new("b"), _new("c")], session=session)
            await getattr(session, ending)()
            left = await session.scalar(select(func.count()).select_from(orders))
        assert expected == ([row.id for row in await rows(app)], left)
    assert job.created
    assert all(each.created for each in many)
    # Redis hears of it from the relay, which was told to look.
    assert [] == relay.pushed
    await eventually(lambda: relay.hints > 0)


async def test_a_first_call_in_a_transaction_that_has_written_waits_for_nobody(app, engine):
    # Compared with the queue, the record is written to: SQLite would wait for this very transaction.
    with engine.begin() as connection:
        connection.execute(insert(orders).values(number=1))
        await app.enqueue("mail", 1, id="a", session=connection)
        assert None is (await app.promises()).generation()
    assert [("a", 0)] == [(row.id, row.generation) for row in await rows(app)]
    assert 1 == (await app.record()).generation()


async def test_nobody_is_told_before_the_commit(app, relay, sessions):
    async with sessions() as session:
        async with session.begin_nested():
            await app.enqueue("mail", 1, session=session)
        await asyncio.sleep(0)
        assert 0 == relay.hints
        await session.rollback()
    await asyncio.sleep(0)
    assert 0 == relay.hints


async def test_a_job_is_moved_in_a_transaction(app, relay, sessions):
    job = await app.enqueue("mail", 1, id="a", due_at=LATER)
    async with sessions() as session:
        moved = await job.reschedule(delay=60, session=session)
        assert JobState.cancelled is await job.cancel(session=session)
        again = await job.requeue(session=session)
        assert job.placed.revision < moved.revision < again.revision
        await session.rollback()
    assert (JobState.scheduled, LATER) == ((await job.get()).state, (await job.get()).due_at)
    async with sessions() as session:
        await job.cancel(session=session)
        await session.commit()
    assert JobState.cancelled is (await job.get()).state
    assert 1 == len(relay.pushed)


async def test_every_kind_of_session_will_do(app, relay, engine, sessions):
    scoped = async_scoped_session(sessions, scopefunc=asyncio.current_task)
    await app.enqueue("mail", 1, id="a", session=scoped)
    await scoped.commit()
    await scoped.remove()
    async with (await app.record()).database.engine.begin() as connection:
        await app.enqueue("mail", 1, id="b", session=connection)
    with Session(engine) as session:
        await app.enqueue("mail", 1, id="c", session=session)
        session.commit()
    with engine.begin() as connection:
        await app.enqueue("mail", 1, id="d", session=connection)
    assert list("abcd") == [row.id for row in await rows(app)]
    with pytest.raises(UsageError, match="not str"):
        await app.enqueue("mail", 1, session="no")


async def test_a_session_on_another_database_is_refused(app, valkey, namespace, engine, other_url):
    await app.record()  # compared with the queue, it has an id
    job = await app.enqueue("mail", 1, id="here", due_at=LATER)
    wrong = sync_engine(other_url)

    async def refused():
        with wrong.begin() as connection:
            for send in (
                partial(app.enqueue, "mail", 1, id="a"),
                partial(app.enqueue_many, [_new("b")]),
                job.cancel,
                job.requeue,
                partial(job.reschedule, delay=1),
            ):
                with pytest.raises(UsageError, match="another database than the record"):
                    await send(session=connection)
            assert 0 == connection.scalar(select(func.count()).select_from(jobs))

    await refused()  # tables that no queue has used
    async with Duly(valkey.url, namespace=f"{namespace}-other", record=other_url) as other:
        await other.record()
    with wrong.begin() as connection:
        connection.execute(update(generations).values(namespace=namespace))
    await refused()  # the record of another queue, of the same name
    wrong.dispose()
    with engine.begin() as connection:
        await app.enqueue("mail", 1, id="a", session=connection)
    assert ["a", "here"] == [row.id for row in await rows(app)]


async def test_a_database_is_asked_once_whether_it_is_the_records(app, engine):
    await app.record()
    asked = []

    def note(_connection, _cursor, statement, *_):
        asked.append("duly_generations" in statement)

    event.listen(engine, "before_cursor_execute", note)
    for _ in range(3):
        with engine.begin() as connection:
            await app.enqueue("mail", 1, session=connection)
            await app.enqueue("mail", 1, session=connection)
    assert 1 == sum(asked) < len(asked)


async def test_middleware_is_around_a_job_in_a_session(app, relay, sessions):
    seen = []

    @app.around_enqueue
    async def around(job, call_next):
        seen.append(job.id)
        return await call_next(job)

    async with sessions() as session:
        await app.enqueue("mail", 1, id="a", session=session)
        await app.enqueue_many([_new("b")], session=session)
        await session.commit()
    assert ["a", "b"] == seen == [row.id for row in await rows(app)]


# -- the blocking twin ------------------------------------------------------------------------------------


async def test_the_twin_uses_a_session_in_its_callers_thread(app, engine):
    threads = set()
    event.listen(engine, "before_cursor_execute", lambda *_: threads.add(threading.current_thread()))

    @app.around_enqueue
    async def around(job, call_next):
        return await call_next(job)

    def work():
        session = scoped_session(sessionmaker(engine))
        app.sync.enqueue("mail", 1, id="gone", session=session)
        session.rollback()
        job = app.sync.enqueue("mail", 1, id="a", due_at=LATER, session=session)
        app.sync.enqueue_many([_new("b")], session=session)
        job.reschedule(delay=60, session=session)
        job.cancel(session=session)
        job.requeue(session=session)
        session.commit()
        session.remove()
        return threading.current_thread(), job.get().state

    caller, state = await asyncio.to_thread(work)
    assert ({caller}, JobState.ready) == (threads, state)
    assert ["a", "b"] == [row.id for row in await rows(app)]


async def test_what_a_session_raises_is_raised_where_it_was_used(app, engine):
    def work():
        with Session(engine) as session:
            app.sync.enqueue("mail", 1, id="a", session=session)
            with pytest.raises(JobExists):
                app.sync.enqueue("mail", 1, id="a", on_conflict="raise", session=session)
            session.commit()
        app.sync.enqueue("mail", 1, id="b")

    await asyncio.to_thread(work)
    assert ["a", "b"] == [row.id for row in await rows(app)]


# -- what is wrong ----------------------------------------------------------------------------------------


async def test_a_session_without_a_record_is_refused(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as app:
        with pytest.raises(UsageError, match="there is no record"):
            await app.enqueue("mail", 1, session=AsyncSession())


async def test_a_record_without_tables_is_refused_with_the_remedy(valkey, namespace, record_url):
    app = Duly(valkey.url, namespace=namespace, record=record_url)
    with pytest.raises(LayoutMismatch, match="duly record migrate"):
        await app.enqueue("mail", 1)
    await app.aclose()


async def test_a_record_that_is_away_refuses_jobs(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace, record="postgresql://x@127.0.0.1:1/x")
    with pytest.raises(RecordUnavailable, match="cannot be reached") as refused:
        await app.enqueue("mail", 1)
    assert isinstance(refused.value, StoreUnavailable)  # over HTTP a 503, like any other
    await app.aclose()


def _new(id_):
    return new_job("mail", 1, Limits()).options(id=id_)
