"""
Looking after a queue over HTTP: the same figures, lists and verbs as on its own server.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duly import Duly, JobState, UsageError
from duly.dead import deaths
from duly.http.api import api
from duly.http.settings import ServiceSettings
from duly.job import JobKey
from duly.select import Selection, select
from duly.store import Want
from duly.where import parse
from tests.http.remote.kit import serving, working
from tests.http.service import Served
from tests.shards import claim_all, fixed_of, on_all


async def kill(app, *ids, topic="mail"):
    """
    Make jobs dead.
    """
    store = await app.store()
    for id_ in ids:
        await app.enqueue(topic, id=id_)
        [lease] = await claim_all(store, [Want(topic, 1, 60_000)], worker="w")
        await store.bury(lease, b'{"type":"ValueError","message":"no user 7"}')


async def test_the_figures_are_those_of_the_queue(producer, app):
    await app.enqueue("mail", id="a", delay=60)
    await app.limit("mail", 5)
    await app.callback("sms", "https://example.com/hook")
    await kill(app, "dead")
    async with working(app):
        while not (await app.stats()).workers.live:
            await asyncio.sleep(0.01)
        told, direct = await producer.stats(), await app.stats()
        assert direct.topics == told.topics
        assert (direct.totals, direct.next_due_at, direct.workers) == (
            told.totals,
            told.next_due_at,
            told.workers,
        )
        assert told.server.version == direct.server.version
        seen, own = await (await producer.views()).stats(), await (await app.views()).stats()
        assert (own.topics, own.next_due_ms) == (seen.topics, seen.next_due_ms)
        assert [each["worker"] for each in own.workers] == [each["worker"] for each in seen.workers]
        views = await producer.views()
        [worker] = await views.workers(await views.now_ms())
        assert (True, {"add", "fail"}) == (worker["live"], set(worker["topics"]))


async def test_lists_of_several_pages_are_whole(app):
    names = [f"topic-{number}" for number in range(7)]
    store = await app.store()
    for name in names:
        await app.enqueue(name)
        await store.beat(name, b'{"topics":["%b"]}' % name.encode())
    async with serving(api(app, ServiceSettings(page_limit=600))) as url, Duly(url) as remote:
        views = await remote.views()
        assert names == await views.topics()
        assert names == [each["worker"] for each in await views.workers(0)]
        told = await remote.stats()
        assert (names, 0) == ([each.topic for each in told.topics], told.more_topics)
        assert names == [each.topic for each in (await views.stats()).topics]


async def test_a_topic_is_delivered_paused_limited_and_purged(producer, app):
    async def topic():
        return next(each for each in (await app.stats()).topics if each.topic == "mail")

    url = "https://example.com/hook"
    await app.enqueue("mail", delay=60)
    await producer.callback("mail", url)
    assert url == (await topic()).callback
    await producer.callback("mail", None)
    assert (await topic()).callback is None
    with pytest.raises(UsageError):
        await producer.callback("mail", "ftp://example.com")
    await producer.pause("mail")
    assert (await topic()).paused
    await producer.resume("mail")
    assert not (await topic()).paused
    await producer.limit("mail", 2**50)
    assert 2**50 == (await topic()).limit
    await producer.limit("mail", None)
    assert (await topic()).limit is None


async def test_jobs_that_wait_are_purged_by_state(producer, app):
    await app.enqueue("mail", id="scheduled", delay=60)
    await app.enqueue("mail", id="ready")
    with pytest.raises(UsageError, match="what waits"):
        await producer.purge("mail", state=JobState.dead)
    assert 1 == await producer.purge("mail", state=JobState.ready)
    assert JobState.scheduled is (await app.job("mail", "scheduled").get()).state
    assert 1 == await producer.purge("mail")
    assert 0 == await producer.purge("mail")


async def test_a_thousand_jobs_are_purged_in_a_few_requests(wire, over, app):
    jobs = [over.add.job(number).options(delay=60) for number in range(1200)]
    await over.enqueue_many(jobs)
    wire.seen.clear()
    assert 1200 == await over.purge("add")
    assert len(wire.seen) < 6, wire.seen
    store = await app.store()
    assert 1200 == sum(map(int, await on_all(store, "topics", "HGET", "add:cancelled")))


async def test_many_jobs_are_cancelled_and_requeued_in_a_few_requests(wire, over, app):
    handles = await over.enqueue_many([over.add.job(number).options(delay=60) for number in range(1200)])
    keys = [handle.key for handle in handles]
    queue = await over.queue()
    wire.seen.clear()
    assert {JobState.cancelled} == set(await queue.cancel(keys))
    placed = await queue.requeue([*keys, JobKey("add", "absent")])
    assert 4 == len(wire.seen)
    assert ["requeued"] * 1200 == [each.word for each in placed[:-1]]
    assert "JobNotFound" == type(placed[-1]).__name__
    # What may have run is sent again, and answered as it was the first time.
    wire.lose, wire.matching = 1, b"jobs:requeue"
    lost = await queue.requeue(keys[:2])
    assert ["Conflict"] * 2 == [type(each).__name__ for each in lost]


async def test_jobs_of_every_topic_are_listed(producer, app):
    for number in range(5):
        await app.enqueue("mail", id=f"m{number}", delay=60 + number)
        await app.enqueue("sms", id=f"s{number}", delay=60 + number)
    views, direct = await producer.views(), await app.views()
    seen = [str(job.key) async for job in views.each(JobState.scheduled)]
    assert [str(job.key) async for job in direct.each(JobState.scheduled)] == seen
    assert 10 == len(seen)


async def test_jobs_are_selected_by_a_filter_and_from_a_place_on(producer, app):
    for number in range(9):
        await app.enqueue(
            "mail", {"n": number}, id=f"m{number}", delay=60 + number, context={"odd": number % 2}
        )
    views = await producer.views()
    chosen = Selection((JobState.scheduled,), None, parse("context.odd = 1"))
    found = [
        (job.id, place)
        async for part in select(views, chosen, page=2)
        for job, place in zip(part.jobs, part.cursors, strict=True)
    ]
    assert ["m1", "m3", "m5", "m7"] == sorted(id_ for id_, _ in found)
    behind = [job.id async for part in select(views, chosen, after=found[1][1]) for job in part.jobs]
    assert [id_ for id_, _ in found[2:]] == behind


async def test_what_changed_meanwhile_is_left_alone(producer, app):
    await app.enqueue("mail", id="before", delay=60)
    views = await producer.views()
    newest = await views.newest()
    await app.enqueue("mail", id="after", delay=60)
    chosen = Selection((JobState.scheduled,))
    found = [job.id async for part in select(views, chosen, newest=newest) for job in part.jobs]
    assert ["before"] == found


async def test_dead_jobs_are_counted_by_their_error(producer, app):
    await kill(app, "a", "b", "c")
    await kill(app, "a", topic="sms")
    found = await deaths(await producer.views())
    assert [("mail", 3), ("sms", 1)] == [(death.topic, death.count) for death in found]
    assert await deaths(await app.views()) == found


async def test_damaged_jobs_are_seen_and_dropped(producer, app):
    store = await app.store()
    for id_ in ("a", "b"):
        await app.enqueue("mail", id=id_)
        jobs = fixed_of(store, "mail", id_)["jobs"]
        await store.link.call("HSET", jobs, f"mail/{id_}", b"\xff damaged")
    await claim_all(store, [Want("mail", 10, 60_000)], worker="w")
    found = await producer.quarantine()
    assert 2 == await found.size()
    # A page for each shard, and one that is empty where nothing is damaged.
    page, cursor = await found.page()
    ids = {each.id for each in page}
    while cursor is not None:
        page, cursor = await found.page(cursor)
        ids |= {each.id for each in page}
    assert {"a", "b"} == ids
    content = await found.content(JobKey("mail", "a"))
    assert content == await (await app.quarantine()).content(JobKey("mail", "a"))
    assert b"\xff damaged" == content.record
    assert [True, False] == await found.drop([JobKey("mail", "a"), JobKey("mail", "absent")])
    assert 1 == await found.drop_all()
    assert 0 == await found.size()


async def test_the_audit_is_read(producer, remote, app):
    await remote.pause("mail")
    await remote.resume("mail")
    told = await producer.audit()
    assert ["resume", "pause"] == [record.action for record in told]
    assert await app.audit(1) == await producer.audit(1) == told[:1]
    with pytest.raises(UsageError, match="limit"):
        await producer.audit(0)


def test_the_blocking_twin_looks_after_a_queue_too(valkey, namespace):
    queue = Duly(valkey.url, namespace=namespace)
    with Served(queue) as served, Duly(served.url).sync as twin:
        twin.enqueue("mail", id="a", delay=60)
        assert 1 == twin.stats().totals.scheduled
        twin.callback("mail", "https://example.com/hook")
        assert "callback" == twin.audit()[0].action
        assert (0, []) == (twin.quarantine().size(), twin.quarantine().page()[0])
        assert 1 == twin.purge("mail")
        assert msgspec.json.encode(twin.stats())
