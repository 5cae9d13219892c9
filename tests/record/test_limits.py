"""
Backlog limits with a record: what is refused leaves no row, and rows count that the queue does not have yet.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker

from duly import Duly, QueueFull
from duly.job import JobKey, JobState, Order
from duly.newjob import new_job
from duly.record.clock import Moment
from duly.record.limits import Room, accept_within
from duly.record.writes import Wanted
from tests.eventually import eventually
from tests.record.kit import read_rows
from tests.record.working import working
from tests.servers import Server, binary

FAR = datetime.now(UTC) + timedelta(days=30)


def many(app, count, **options):
    return [new_job("mail", None, app.settings.limits).options(id=f"m{at}", **options) for at in range(count)]


async def ids(app):
    return set(await read_rows((await app.record()).database))


def taken(outcomes):
    return sum(not isinstance(outcome, QueueFull) for outcome in outcomes)


async def test_a_job_beyond_the_limit_is_refused_and_leaves_no_row(app):
    await app.limit("mail", 3)
    for id_, options in (("a", {}), ("b", {"delay": 10}), ("c", {"due_at": FAR})):
        await app.enqueue("mail", id=id_, **options)
    for options in ({}, {"delay": 10}, {"due_at": FAR}):
        with pytest.raises(QueueFull, match="topic mail is at its backlog limit; mail/d was not stored"):
            await app.enqueue("mail", id="d", **options)
    assert not (await app.enqueue("mail", id="a")).created
    await app.enqueue("sms", id="other")
    assert {*"abc", "other"} == await ids(app)
    await app.job("mail", "c").cancel()
    await app.enqueue("mail", id="d")
    await app.limit("mail", None)
    await app.enqueue("mail", id="e")


async def test_many_at_once_are_taken_up_to_the_limit(app):
    await app.limit("mail", 10)
    assert 10 == taken(await app.enqueue_many(many(app, 1_000, delay=10)))
    assert 10 == len(await ids(app))
    assert 10 == await app.purge("mail")
    sent = (app.enqueue("mail", id=f"s{at}") for at in range(100))
    assert 10 == taken(await asyncio.gather(*sent, return_exceptions=True))


async def test_the_limit_is_shown_as_it_was_asked_for(app):
    await app.limit("mail", 10)
    [topic] = (await (await app.views()).stats()).topics
    assert 10 == topic.limit


async def test_an_ended_job_that_is_replaced_takes_a_place(app):
    for id_ in "abc":
        await (await app.enqueue("mail", 1, id=id_)).cancel()
    gone = await app.job("mail", "c").get()
    assert [True] == await (await app.store()).forget([(gone.key, gone.revision)])
    await app.limit("mail", 1)
    assert (await app.enqueue("mail", 2, id="a", on_conflict="replace")).created
    # The queue has the one, and has let the other go.
    for id_ in "bc":
        with pytest.raises(QueueFull):
            await app.enqueue("mail", 2, id=id_, on_conflict="replace")
        assert JobState.cancelled is (await app.job("mail", id_).get()).state
    # What waits is replaced where it is.
    assert (await app.enqueue("mail", 3, id="a", on_conflict="replace")).created


async def test_what_runs_is_no_backlog_and_takes_a_place_when_it_is_replaced(app):
    await app.limit("mail", 1)
    async with working(app):
        await app.enqueue("mail", id="a")
        await eventually(lambda: len(app.running) == 1)
        await app.pause("mail")
        await app.enqueue("mail", id="b", delay=30)
        with pytest.raises(QueueFull):
            await app.enqueue("mail", id="a", delay=30, on_conflict="replace")
        assert JobState.running is (await app.job("mail", "a").get()).state
        app.goes_on.set()


async def test_what_a_session_has_promised_counts_at_once(app):
    await app.limit("mail", 2)
    sessions = async_sessionmaker((await app.record()).database.engine)
    async with sessions() as session:
        await app.enqueue("mail", id="a", session=session)
        assert 1 == taken(await app.enqueue_many(many(app, 3, due_at=FAR), session=session))
        with pytest.raises(QueueFull):
            await app.enqueue("mail", id="b", session=session)
        await session.rollback()
    async with sessions() as session:
        assert 2 == taken(await app.enqueue_many(many(app, 300), session=session))
        await session.commit()
    # Committed, and not brought to the queue by anybody yet; then there.
    for _ in range(2):
        with pytest.raises(QueueFull):
            await app.enqueue("mail", id="c")
        await (await app.record()).bring()


async def test_a_limit_that_somebody_else_sets_counts_from_the_next_call_on(app, valkey, namespace):
    await app.enqueue("mail", id="a", delay=10)
    record, shards = app.settings.record, app.settings.shards
    async with Duly(valkey.url, namespace=namespace, record=record, horizon="1m", shards=shards) as other:
        await other.limit("mail", 2)
        await other.enqueue("mail", id="b", delay=10)
    with pytest.raises(QueueFull):
        await app.enqueue("mail", id="c")


async def test_while_redis_is_away_the_record_takes_what_comes(migrated_url, namespace):
    server = Server(binary("valkey")).start()
    app = Duly(server.url, namespace=namespace, record=migrated_url)
    try:
        await app.limit("mail", 1)
        await app.enqueue("mail", id="a", delay=10)
        with pytest.raises(QueueFull):
            await app.enqueue("mail", id="b", delay=10)
        server.kill()
        assert (await app.enqueue("mail", id="b", delay=10)).created
    finally:
        await app.aclose()
        server.stop()


async def test_a_call_whose_commit_was_not_answered_gets_the_same_answers(database):
    wanted = [Wanted(Order(JobKey("mail", id_), b"1"), id_.encode() * 6) for id_ in "abcd"]
    told = [
        await database.write(
            lambda connection: accept_within(connection, "n", wanted, Moment(5, 5), Room({"mail": 2}))
        )
        for _ in range(2)
    ]
    for answers in told:
        words = [getattr(each.answer, "word", type(each.answer).__name__) for each in answers]
        assert ["created", "created", "QueueFull", "QueueFull"] == words
