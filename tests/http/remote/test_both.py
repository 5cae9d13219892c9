"""
Producers over HTTP: the same calls, answers and errors as on the queue's own server.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from duly import (
    Conflict,
    Duly,
    Exponential,
    JobCancelled,
    JobExists,
    JobFailed,
    JobNotFound,
    JobState,
    QueueFull,
    ResultGone,
    UsageError,
)
from duly.bulk import IN_FLIGHT
from duly.errors import DulyError
from duly.group import MAX_JOBS
from duly.job import JobKey
from duly.newjob import new_job
from duly.records import read
from duly.services.pruner import Pruner
from duly.store import Want
from duly.testing import TestBed
from tests.eventually import eventually
from tests.http.remote.kit import with_handlers, working
from tests.http.service import Served
from tests.shards import claim_all, fixed_of, ids_on, on_all

FAR = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


async def test_a_job_is_sent_and_its_result_comes_back(producer, app):
    sent = await producer.enqueue(producer.add.job(2, right=3))
    assert (True, "add", "created", JobState.ready) == (
        sent.created,
        sent.topic,
        sent.placed.word,
        sent.placed.state,
    )
    async with working(app):
        assert {"sum": 5} == await sent.result(timeout=30)
        named = await producer.enqueue("add", {"left": 1})
        assert {"sum": 1} == await named.result(timeout=30)
    job = await sent.get()
    assert (JobState.succeeded, 1, b'{"sum":5}') == (job.state, job.attempts, job.outcome)
    assert job.due_at <= job.started_at <= job.finished_at


async def test_every_option_arrives(producer, app):
    due = datetime(2060, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    sent = await producer.enqueue(
        "mail",
        [1, {"ä": "\n\u2028"}],
        id="a:b@c=d+e~f",
        due_at=due,
        expires=FAR,
        priority="high",
        ttr=timedelta(milliseconds=1234),
        max_attempts=7,
        backoff=Exponential(base=1, cap=9, factor=3, jitter=0.5),
        context={"tenant": "acme"},
        retain=60,
    )
    assert due == sent.due_at
    job = await app.job("mail", "a:b@c=d+e~f").get()
    assert (due, "high", 1234) == (job.due_at, job.priority, job.ttr_ms)
    assert (7, {"tenant": "acme"}) == (job.envelope.max_attempts, job.envelope.context)
    assert {"kind": "exponential", "base": 1, "cap": 9, "factor": 3.0, "jitter": 0.5} == job.envelope.backoff
    assert int(FAR.timestamp()) * 1000 + 999 == job.expires_ms
    assert '[1,{"ä":"\\n\u2028"}]'.encode() == job.payload
    seen = await producer.job("mail", sent.id).get()
    for name in ("topic", "id", "state", "revision", "priority", "due_ms", "ttr_ms", "expires_ms", "payload"):
        assert getattr(job, name) == getattr(seen, name), name
    assert job.envelope.context == seen.envelope.context


async def test_a_delay_counts_by_the_servers_clock_and_is_exact(producer, app):
    before = await (await app.views()).now_ms()
    sent = await producer.enqueue("mail", delay=timedelta(days=400, milliseconds=1))
    after = await (await app.views()).now_ms()
    job = await sent.get()
    # The server's part of a millisecond is rounded up.
    assert before + 400 * 86_400_000 + 1 <= job.due_ms <= after + 400 * 86_400_000 + 2
    assert (JobState.scheduled, job.due_at) == (sent.placed.state, sent.due_at)


async def test_the_same_id_is_kept_replaced_or_refused(producer):
    first = await producer.enqueue("mail", 1, id="a", delay=60)
    kept = await producer.enqueue("mail", 2, id="a", delay=90)
    assert (False, "kept", first.placed.revision) == (kept.created, kept.placed.word, kept.placed.revision)
    assert first.due_at == kept.due_at
    replaced = await producer.enqueue("mail", 3, id="a", delay=90, on_conflict="replace")
    assert (True, "replaced") == (replaced.created, replaced.placed.word)
    assert first.placed.revision < replaced.placed.revision
    assert b"3" == (await replaced.get()).payload
    with pytest.raises(JobExists, match="mail/a"):
        await producer.enqueue("mail", 4, id="a", on_conflict="raise")
    new = await producer.enqueue("mail", 4, id="b", delay=60, on_conflict="replace")
    assert "created" == new.placed.word


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": 1, "due_at": FAR},
        {"id": "a/b"},
        {"priority": "urgent"},
        {"due_at": FAR.replace(tzinfo=None)},
        {"context": {"x": "y" * 9000}},
        {"max_attempts": 0},
    ],
)
async def test_what_is_wrong_is_said_before_it_is_sent(producer, app, options):
    with pytest.raises(UsageError):
        await producer.enqueue("mail", None, **options)
    assert [] == (await (await app.views()).stats()).topics


async def test_a_topic_at_its_limit_takes_no_more(producer, app):
    await app.limit("mail", 1)
    # Every shard takes a job at least.
    first, second, third = ids_on(app.settings, "mail", app.settings.shards - 1, 3)
    await producer.enqueue("mail", id=first)
    with pytest.raises(QueueFull):
        await producer.enqueue("mail", id=second)
    assert "kept" == (await producer.enqueue("mail", id=first)).placed.word
    [full] = await producer.enqueue_many([new_job("mail", None, producer.settings.limits).options(id=third)])
    assert isinstance(full, QueueFull)


async def test_many_jobs_have_an_outcome_each_and_wrong_ones_stop_nobody(producer, app):
    def job(topic, payload=None, **options):
        return new_job(topic, payload, producer.settings.limits).options(**options)

    await producer.enqueue("mail", id="there", delay=60)
    outcomes = await producer.enqueue_many(
        iter(
            [
                job("mail", 1, id="a", due_at=FAR),
                job("sms", 2, id="a", delay=60),
                job("mail", 3, delay=-1),
                job("mail", 4, id="there"),
                job("mail", 5, id="there", on_conflict="raise"),
                job("mail", 6, id="there", on_conflict="replace", delay=60),
                job("mail", {"text": "\n"}, id="a"),
                job("mail"),
            ]
        )
    )
    words = [
        type(each).__name__ if isinstance(each, DulyError) else (each.topic, each.placed.word)
        for each in outcomes
    ]
    assert [
        ("mail", "created"),
        ("sms", "created"),
        "UsageError",
        ("mail", "kept"),
        "JobExists",
        ("mail", "replaced"),
        ("mail", "kept"),
        ("mail", "created"),
    ] == words
    assert FAR == outcomes[0].due_at
    # Also of those that were there, and of those that count from the server's now.
    there = (await app.job("mail", "there").get()).due_at
    assert (outcomes[0].due_at, there) == (outcomes[6].due_at, outcomes[5].due_at)
    assert (await app.job("sms", "a").get()).due_at == outcomes[1].due_at
    assert JobState.scheduled == outcomes[1].placed.state
    assert b"6" == (await app.job("mail", "there").get()).payload
    assert [] == await producer.enqueue_many([])


async def test_many_jobs_leave_in_slices_while_they_are_made(producer, app):
    """
    None is made long before it is sent: those that wait fit into the slices under way.
    """
    count = 2 * (IN_FLIGHT + 2) * MAX_JOBS
    ahead = 0
    views = await app.views()

    def made():
        for number in range(count):
            nonlocal ahead
            ahead += 1
            yield new_job("mail", number, producer.settings.limits).options(id=str(number), due_at=FAR)

    sending = asyncio.create_task(producer.enqueue_many(made()))
    most = 0
    while not sending.done():
        made_before = ahead
        known = {each.topic: each.counts["scheduled"] for each in (await views.stats()).topics}
        most = max(most, made_before - known.get("mail", 0))
        await asyncio.sleep(0)
    handles = await sending
    assert [str(number) for number in range(count)] == [handle.id for handle in handles]
    assert all(handle.created for handle in handles)
    assert most < count


async def test_a_job_is_moved_and_run_again(producer, app):
    sent = await producer.enqueue("mail", id="a", delay=60)
    moved = await sent.reschedule(delay=90, revision=sent.placed.revision)
    assert ("rescheduled", JobState.scheduled) == (moved.word, moved.state)
    assert sent.placed.due_ms < moved.due_ms
    with pytest.raises(Conflict):
        await sent.reschedule(delay=1, revision=sent.placed.revision)
    moved = await sent.reschedule(due_at=FAR)
    assert int(FAR.timestamp()) * 1000 + 999 == moved.due_ms
    with pytest.raises(Conflict):
        await sent.requeue()
    assert JobState.cancelled is await sent.cancel()
    assert JobState.cancelled is await sent.cancel()
    with pytest.raises(Conflict):
        await sent.reschedule(delay=1)
    again = await sent.requeue()
    assert ("requeued", JobState.ready) == (again.word, again.state)


async def test_cancelling_what_has_ended_says_how_it_ended(producer, app):
    sent = await producer.enqueue("mail", id="a")
    store = await app.store()
    [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w")
    await store.ack(lease)
    assert JobState.succeeded is await sent.cancel()


async def test_a_far_future_job_is_changed_where_it_waits(producer, app):
    store = await app.store()
    await on_all(store, "meta", "HSET", "horizon", "table")
    far, when = producer.job("mail", "far"), datetime(2050, 1, 1, tzinfo=UTC)
    placed = await far.reschedule(due_at=when)
    assert ("accepted", when.timestamp() * 1000) == (placed.word, placed.due_ms)
    assert "accepted" == await far.cancel()


async def test_a_job_that_is_not_there_is_not_found(producer):
    absent = producer.job("mail", "absent")
    for call in (
        absent.get,
        absent.cancel,
        absent.requeue,
        lambda: absent.reschedule(delay=1),
        lambda: absent.result(timeout=30),
    ):
        with pytest.raises(JobNotFound):
            await call()
    assert [None] == await (await producer.views()).get_many([absent.key])


async def test_a_result_that_will_not_come_is_an_error(producer, app):
    failed = await producer.enqueue(producer.fail.job())
    cancelled = await producer.enqueue("add", {"left": 1}, delay=60)
    await cancelled.cancel()
    async with working(app):
        with pytest.raises(JobFailed, match="boom"):
            await failed.result(timeout=30)
    with pytest.raises(JobCancelled):
        await cancelled.result(timeout=30)


async def test_a_result_that_was_not_kept_is_said_to_be_gone(producer, app):
    kept = await producer.enqueue(producer.add.job(2, 3), retain=1)
    gone = await producer.enqueue(producer.add.job(2, 3), id="a", retain=0)
    nothing = await producer.enqueue("nothing", retain=0)
    async with working(app) as worker:

        @worker.handler("nothing")
        async def _() -> None: ...

        assert {"sum": 5} == await kept.result(timeout=30)
        await eventually(lambda: _ended(gone, nothing))
    with pytest.raises(ResultGone, match=r"^add/a has succeeded, but its result was not kept"):
        await gone.result(timeout=30)
    assert [True, False] == [(await each.get()).result_gone for each in (gone, nothing)]
    assert None is await nothing.result(timeout=30)


async def test_once_a_job_kept_for_a_short_time_is_pruned_its_result_is_an_error(kind, valkey, served):
    async with (
        TestBed(Duly(), valkey.url) as bed,
        served(with_handlers(bed.app)) as (url, _),
        Duly(url) as remote,
    ):
        sent = await (bed.app if kind == "redis" else remote).enqueue(bed.app.add.job(2, 3), retain=1)
        await bed.drain()
        pruner = Pruner(await bed.app.store())
        bed.clock.advance(seconds=59)
        await pruner.run_once()
        assert {"sum": 5} == await sent.result(timeout=30), "a minute at least"
        bed.clock.advance(seconds=2)
        await pruner.run_once()
        with pytest.raises(JobNotFound) as told:
            await sent.result(timeout=30)
    assert f"there is no job add/{sent.id}: it was pruned, or never was" == str(told.value)


async def _ended(*handles):
    assert all([(await each.get()).state.ended for each in handles])


async def test_a_wait_ends_in_time_and_says_so(producer):
    sent = await producer.enqueue("nobody.takes", delay=60)
    with pytest.raises(TimeoutError, match=r"nobody\.takes"):
        await sent.result(timeout=0.1)


async def test_jobs_of_a_topic_are_listed_and_purged(producer, app):
    # Of the first shard: each is listed by itself.
    ids = ids_on(app.settings, "mail", 0, 5)
    for number, id_ in enumerate(ids):
        await producer.enqueue("mail", number, id=id_, delay=60 + number)
    await producer.enqueue("mail", id="now")
    await producer.enqueue("other", id="now")
    views = await producer.views()
    assert ids == [job.id async for job in views.each(JobState.scheduled, "mail")]
    page = await views.page(JobState.scheduled, "mail", limit=2)
    assert ids[:2] == [job.id for job in page.jobs]
    page = await views.page(JobState.scheduled, "mail", limit=2, cursor=page.cursor)
    assert ids[2:4] == [job.id for job in page.jobs]
    assert ["now"] == [job.id for job in await views.peek("mail")]
    with pytest.raises(UsageError, match="cursor"):
        await views.page(JobState.scheduled, "mail", cursor="nonsense")
    assert 6 == await producer.purge("mail")
    assert [] == [job async for job in views.each(JobState.scheduled, "mail")]
    assert JobState.ready is (await producer.job("other", "now").get()).state


async def test_middleware_and_context_go_along(producer, app):
    @producer.around_enqueue
    async def mark(job, call_next):
        return await call_next(job.options(context={"by": "mark"}))

    handles = [await producer.enqueue("mail"), *await producer.enqueue_many([producer.add.job(1)])]
    for handle in handles:
        assert {"by": "mark"} == (await app.job(*handle.key).get()).envelope.context


def test_the_blocking_twin_does_the_same(valkey, namespace):
    queue = Duly(valkey.url, namespace=namespace)
    with Served(queue) as served, Duly(served.url).sync as twin:
        sent = twin.enqueue("mail", {"n": 1}, id="a", delay=60)
        assert (True, "scheduled") == (sent.created, sent.get().state.name)
        many = twin.enqueue_many([new_job("mail", None, queue.settings.limits).options(delay=60)])
        assert many[0].created
        sent.reschedule(delay=90)
        assert ["a"] == [job.id for job in twin.views().each(JobState.scheduled, "mail") if job.id == "a"]
        assert JobState.cancelled is sent.cancel()
        assert "requeued" == sent.requeue().word
        with pytest.raises(TimeoutError):
            sent.result(timeout=0.05)


async def test_how_many_crashes_a_job_may_have_and_where_it_is_delivered_travel_with_it(producer, app):
    url = "https://example.com/hook"
    await producer.enqueue("mail", id="a", max_crashes=7)
    await producer.enqueue_many([producer.add.job(1).options(id="b", callback=url, max_crashes=8)])
    store = await app.store()
    for key, crashes in ((JobKey("mail", "a"), 7), (JobKey("add", "b"), 8)):
        kept = await store.link.call("HGET", fixed_of(store, *key)["jobs"], key.member)
        assert crashes == read(kept).max_crashes
    assert url == (await app.job("add", "b").get()).envelope.callback
