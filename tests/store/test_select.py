"""
Many jobs, chosen by state, topic and filter; and what the dead died of.
"""

from __future__ import annotations

import pytest

from duly import JobState, UsageError
from duly.dead import OTHERS, deaths
from duly.errors import LayoutMismatch
from duly.failure import reason_document
from duly.job import Lane
from duly.namespace import inspect, require
from duly.select import Selection, select
from duly.where import parse
from tests.shards import one_id_on_each, promote_all
from tests.store.kit import claim, enqueue, key, order

EVERY = tuple(JobState)


async def found(views, selection, **options):
    return [job.id async for part in select(views, selection, **options) for job in part.jobs]


async def _one_in_each_state(store):
    for id_ in ("running", "succeeded", "dead"):
        await enqueue(store, id_)
    leases = {lease.key.id: lease for lease in await claim(store)}
    await store.ack(leases["succeeded"], b"1")
    await store.bury(leases["dead"], reason_document("ValueError", "no user 42"))
    await enqueue(store, "cancelled", delay_ms=5_000)
    await store.cancel([key("cancelled")])
    await enqueue(store, "ready")
    await enqueue(store, "scheduled", delay_ms=5_000)


@pytest.mark.several_shards
async def test_jobs_are_found_in_the_order_of_their_lives(store, views):
    await _one_in_each_state(store)
    in_order = ["running", "ready", "scheduled", "dead", "cancelled", "succeeded"]
    assert in_order == await found(views, Selection(EVERY))
    assert ["ready", "dead"] == await found(views, Selection((JobState.dead, JobState.ready)))
    assert ["dead"] == await found(views, Selection(EVERY, where=parse("error ~ 'NO USER'")))
    assert [] == await found(views, Selection(EVERY, where=parse("topic = sms")))
    assert [] == await found(views, Selection(EVERY, ("sms",), parse("topic = mail")))


async def test_a_filter_that_names_states_and_topics_is_not_looked_for_elsewhere(store, views):
    await _one_in_each_state(store)
    await enqueue(store, "other", "sms", delay_ms=5_000)
    where = parse("state in (scheduled, dead) and topic = mail")
    seen = [part.seen async for part in select(views, Selection(EVERY, where=where))]
    assert [1, 1] == seen
    assert ["scheduled", "dead"] == await found(views, Selection(EVERY, where=where))


@pytest.mark.several_shards
async def test_each_cursor_goes_on_behind_its_job(store, views):
    await _one_in_each_state(store)
    for topic, lane in (("mail", Lane.high), ("sms", Lane.low), ("mail", Lane.callback)):
        await store.enqueue_many([order(f"{topic}{lane}{at}", topic, lane=lane) for at in range(3)])
    for selection in (
        Selection(EVERY),
        Selection(EVERY, ("sms", "mail")),
        Selection(EVERY, where=parse("id ~ m")),
    ):
        parts = [part async for part in select(views, selection)]
        ids = [job.id for part in parts for job in part.jobs]
        cursors = [cursor for part in parts for cursor in part.cursors]
        assert len(ids) > 5
        for at, cursor in enumerate(cursors):
            assert ids[at + 1 :] == await found(views, selection, after=cursor, page=2)


@pytest.mark.several_shards
@pytest.mark.parametrize("after", ["", "x", "dead", "dead,mail,0:", "ready,,zero"])
async def test_a_cursor_of_something_else_is_refused(views, after):
    with pytest.raises(UsageError, match="not a cursor of this list"):
        await found(views, Selection((JobState.ready,)), after=after)


@pytest.mark.several_shards
async def test_what_was_moved_while_looking_is_met_once(store, views, clock):
    await store.enqueue_many([order(f"{at:02}", delay_ms=100 + at) for at in range(30)])
    newest = await views.newest()
    moved = []
    async for part in select(views, Selection((JobState.scheduled,)), page=4, newest=newest):
        for job in part.jobs:
            # To where the list has not come yet.
            await store.reschedule(job.key, delay_ms=10_000)
            moved.append(job.id)
        assert len(moved) <= 30
    assert [f"{at:02}" for at in range(30)] == sorted(moved)


@pytest.mark.several_shards
async def test_what_moves_on_while_one_acts_on_it_is_not_missed(store, views, clock):
    ids = [f"{at:02}" for at in range(40)]
    await store.enqueue_many([order(id_, delay_ms=100 + int(id_)) for id_ in ids])
    clock.advance(ms=110)
    await promote_all(store)
    await claim(store, limit=5)
    met = set()
    open_ = Selection((JobState.running, JobState.ready, JobState.scheduled))
    async for part in select(views, open_, page=4, newest=await views.newest()):
        met.update(job.id for job in part.jobs)
        clock.advance(ms=5)
        await promote_all(store)
        await claim(store, limit=2)
    assert set(ids) == met


@pytest.mark.several_shards
async def test_the_oldest_of_the_waiting_jobs_is_found_behind_running_ones(store, views, clock):
    assert await views.waiting_since("mail") is None
    first = clock.now_ms
    await store.enqueue_many([order(f"{at}") for at in range(3)])
    await claim(store, limit=2)
    clock.advance(ms=10)
    await enqueue(store, "high", lane=Lane.high)
    assert first == await views.waiting_since("mail")
    await claim(store, limit=2)
    assert await views.waiting_since("mail") is None
    await enqueue(store, "later", delay_ms=1_000)
    assert await views.waiting_since("mail") is None


async def _bury(store, id_, topic, kind, message):
    await enqueue(store, id_, topic)
    [lease] = await claim(store, topic)
    await store.bury(lease, reason_document(kind, message))


@pytest.mark.several_shards
async def test_the_dead_are_grouped_by_topic_and_what_they_died_of(store, views, clock):
    began = clock.now_ms
    for at in range(3):
        await _bury(store, f"m{at}", "mail", "ValueError", f"no user {at}")
        clock.advance(s=1)
    await _bury(store, "other", "mail", "OSError", "gone")
    await _bury(store, "s", "sms", "ValueError", "no user 7")
    first, *rest = await deaths(views)
    assert ("mail", "ValueError: no user #", 3) == (first.topic, first.error, first.count)
    assert (began, began + 2_000, "m2") == (first.first_ms, first.last_ms, first.example)
    assert [("mail", "OSError: gone", 1), ("sms", "ValueError: no user #", 1)] == [
        (death.topic, death.error, death.count) for death in rest
    ]
    assert ["s"] == [death.example for death in await deaths(views, ("sms",))]


async def test_errors_that_are_never_the_same_are_counted_together(store, views, monkeypatch):
    monkeypatch.setattr("duly.dead.MOST", 2)
    for at, word in enumerate(("one", "two", "three", "four", "five")):
        await _bury(store, str(at), "mail", "ValueError", word)
    assert {"ValueError: one": 1, "ValueError: two": 1, OTHERS: 3} == {
        death.error: death.count for death in await deaths(views)
    }


@pytest.mark.several_shards
async def test_consumers_know_how_far_they_are_behind(store, feed):
    assert {} == await feed.lags()
    await enqueue(store, "a")
    everywhere = range(store.shards)
    for id_ in one_id_on_each(store, "mail"):
        await enqueue(store, id_)
    for shard in everywhere:
        await feed.commit("reader", shard, await feed.last(shard))
        await feed.commit("new", shard, None)
    assert {"reader": 0, "new": 1 + store.shards} == await feed.lags()
    for id_ in one_id_on_each(store, "mail", "more"):
        await enqueue(store, id_)
    assert {"reader": store.shards, "new": 1 + 2 * store.shards} == await feed.lags()
    await feed.forget("reader")
    assert {"new": 1 + 2 * store.shards} == await feed.lags()
    assert [{"new": 0}] * store.shards == [await feed.consumers(shard) for shard in everywhere]


async def test_the_server_tells_of_its_memory_and_clients(link):
    facts = await inspect(link)
    assert facts.memory_bytes > 0
    assert 0 == facts.max_memory_bytes
    assert facts.clients >= 1


async def test_a_namespace_that_nobody_made_is_refused_to_those_who_only_look(link, store):
    await require(link, store.namespace)
    with pytest.raises(LayoutMismatch, match=r"no namespace 'typo' at .*: no app has used it yet"):
        await require(link, "typo")
