"""
Far-future jobs at the queue's door: taken once each, and as they were changed while they waited elsewhere.
"""

from __future__ import annotations

import pytest

from duly.errors import Conflict, JobNotFound
from duly.job import JobKey, JobState, Lane, Order
from duly.namespace import create
from duly.records import head_of
from duly.store import Keeping, Store, Want
from tests.shards import (
    claim_all,
    fixed_of,
    ids_on,
    on_all,
    one_id_on_each,
    promote_all,
    prune_all,
    shard_of,
)

pytestmark = pytest.mark.several_shards

TOPIC = "mail"


def key(id_: str) -> JobKey:
    return JobKey(TOPIC, id_)


def order(id_: str, due_ms: int, payload: bytes = b"{}", **options) -> Order:
    return Order(key(id_), payload, due_ms=due_ms, **options)


@pytest.fixture
async def cold(store):
    """
    A namespace that has a table of far-future jobs.
    """
    await on_all(store, "meta", "HSET", "horizon", "table")
    return store


async def test_a_job_is_taken_once_and_keeps_its_due_time(cold, views, clock, look):
    soon = clock.now_ms + 5_000
    assert ["created"] == await cold.thaw([order("a", soon, b'{"n":1}', lane=Lane.high, ttr_ms=7_000)], 1)
    assert ["kept"] == await cold.thaw([order("a", soon)], 1)
    job = await views.get(key("a"))
    assert (JobState.scheduled, soon, b'{"n":1}', "high", 7_000) == (
        job.state,
        job.due_ms,
        job.payload,
        job.priority,
        job.ttr_ms,
    )
    look()


async def test_what_is_past_is_ready_at_once_and_late_since_it_was_due(cold, views, clock, look):
    await cold.thaw([order("a", clock.now_ms - 5_000, b"x" * 3_000)], 1)
    look()
    [lease] = await claim_all(cold, [Want(TOPIC, 1, 60_000)], worker="w")
    assert (clock.now_ms - 5_000, b"x" * 3_000) == (lease.floor_ms, lease.payload)


async def test_an_event_tells_where_the_job_came_from(cold, feed, clock):
    await cold.thaw([order("a", clock.now_ms + 1)], 1)
    _, events = await feed.read(shard_of(cold, TOPIC, "a"), None, 10)
    assert [("enqueued", "a", "hydrated")] == [(each.verb, each.id, each.reason) for each in events]


async def test_a_job_that_the_queue_knows_is_kept_whatever_its_state(cold, views, clock):
    await cold.enqueue(Order(key("a"), b'{"mine":1}', due_ms=clock.now_ms + 9_000))
    assert ["kept"] == await cold.thaw([order("a", clock.now_ms + 1)], 1)
    assert b'{"mine":1}' == (await views.get(key("a"))).payload
    await cold.cancel([key("a")])
    assert ["kept"] == await cold.thaw([order("a", clock.now_ms + 1)], 2)
    assert JobState.cancelled is (await views.get(key("a"))).state


async def test_a_pass_that_runs_again_takes_nothing_that_ended_and_was_pruned_meanwhile(
    link, namespace, shards, clock, views
):
    await create(link, namespace, shards, clock="test")
    store = Store(link, namespace=namespace, shards=shards, now=clock, keeping=Keeping(done_ms=0))
    await store.thaw([order("a", clock.now_ms)], 1)
    [lease] = await claim_all(store, [Want(TOPIC, 1, 60_000)], worker="w")
    await store.ack(lease)
    clock.advance(s=3_600)
    assert (1, False) == await prune_all(store)
    assert ["kept"] == await store.thaw([order("a", clock.now_ms)], 1)
    # Committed: the table does not offer the row again, and the same id is another job.
    await store.settle(1)
    with pytest.raises(Conflict, match="pass 1 is over"):
        await store.thaw([order("a", clock.now_ms)], 1)
    assert ["created"] == await store.thaw([order("a", clock.now_ms)], 2)


async def test_an_attempt_at_a_pass_that_is_over_takes_nothing(cold, views, clock):
    for shard in range(cold.shards):
        first, second = ids_on(cold, TOPIC, shard, 2)
        await cold.thaw([order(first, clock.now_ms + 1)], 2)
        with pytest.raises(Conflict, match="pass 1 is over"):
            await cold.thaw([order(second, clock.now_ms + 1)], 1)
        assert None is await views.get(key(second))


async def test_a_pass_that_is_over_is_over_on_every_shard(cold, views, clock):
    first, *others = one_id_on_each(cold, TOPIC)
    await cold.thaw([order(first, clock.now_ms + 1)], 1)
    await cold.settle(1)
    for id_ in others:
        with pytest.raises(Conflict, match="pass 1 is over"):
            await cold.thaw([order(id_, clock.now_ms + 1)], 1)
        assert None is await views.get(key(id_))


async def test_a_revision_of_a_far_future_job_that_has_not_come_is_not_cancelled(cold, clock):
    assert [None] == await cold.cancel([key("a")], revision=7)
    assert ["created"] == await cold.thaw([order("a", clock.now_ms + 1)], 1)


async def test_a_far_future_job_can_be_cancelled_before_it_comes(cold, views, clock):
    assert ["accepted"] == await cold.cancel([key("a")])
    assert ["cancelled"] == await cold.thaw([order("a", clock.now_ms + 1)], 1)
    assert None is await views.get(key("a"))
    # The attempt that is repeated does not take it either, though the change is used up.
    assert ["kept"] == await cold.thaw([order("a", clock.now_ms + 1)], 1)


async def replies_of(store, name: str) -> list[tuple[bytes, JobState, bytes]]:
    told = [await store.reply_take(shard, name, 10, lease_ms=1_000) for shard in range(store.shards)]
    return [
        (member, head_of(head)[0].state, outcome)
        for _, taken, _ in told
        for _, member, head, outcome in taken
    ]


@pytest.mark.parametrize("wait_ms", [0, 5_000])
async def test_who_asked_for_a_reply_gets_it_from_a_far_future_job(cold, views, clock, look, wait_ms):
    order_ = order(
        "a", clock.now_ms + wait_ms, b"x" * 3_000, envelope=b'{"reply_to":"answers"}', ttr_ms=7_000
    )
    assert ["created"] == await cold.thaw([order_], 1)
    look()
    assert ("answers", clock.now_ms + wait_ms) == (
        (await views.get(key("a"))).envelope.reply_to,
        (await views.get(key("a"))).due_ms,
    )
    clock.advance(ms=wait_ms)
    await promote_all(cold)
    [lease] = await claim_all(cold, [Want(TOPIC, 1, 60_000)], worker="w")
    assert b"x" * 3_000 == lease.payload
    await cold.ack(lease, b'"done"')
    assert [(b"mail/a", JobState.succeeded, b'"done"')] == await replies_of(cold, "answers")
    look()


async def test_a_far_future_job_that_comes_early_tells_its_end_as_well(cold, clock):
    await cold.reschedule(key("a"), due_ms=clock.now_ms)
    far = order("a", clock.now_ms + 10**9, envelope=b'{"reply_to":"answers"}')
    assert ["created"] == await cold.thaw([far], 1, early=True)
    [lease] = await claim_all(cold, [Want(TOPIC, 1, 60_000)], worker="w")
    await cold.bury(lease, b'"no"')
    assert [(b"mail/a", JobState.dead, b'"no"')] == await replies_of(cold, "answers")


async def test_one_that_was_cancelled_before_it_came_tells_so_once(cold, clock, look):
    asking = order("a", clock.now_ms + 1, envelope=b'{"reply_to":"answers"}')
    silent = order("b", clock.now_ms + 1, b'{"reply_to":"answers"}')
    await cold.cancel([key("a"), key("b")])
    assert ["cancelled", "cancelled"] == await cold.thaw([asking, silent], 1)
    assert ["kept", "kept"] == await cold.thaw([asking, silent], 1)
    assert [(b"mail/a", JobState.cancelled, b'{"type":"cancelled"}')] == await replies_of(cold, "answers")
    assert {} == look().jobs


async def test_a_far_future_job_can_be_rescheduled_before_it_comes(cold, views, clock):
    later = clock.now_ms + 90_000
    placed = await cold.reschedule(key("a"), due_ms=later)
    assert ("accepted", later, False) == (placed.word, placed.due_ms, placed.created)
    again = await cold.reschedule(key("a"), delay_ms=60_000)
    assert clock.now_ms + 60_000 == again.due_ms
    assert ["created"] == await cold.thaw([order("a", clock.now_ms + 1)], 1)
    assert clock.now_ms + 60_000 == (await views.get(key("a"))).due_ms


async def test_a_job_that_was_rescheduled_to_an_earlier_time_comes_early_and_only_once(cold, views, clock):
    far = clock.now_ms + 10**9
    await cold.reschedule(key("a"), due_ms=clock.now_ms + 5)
    assert ["created", "kept"] == await cold.thaw([order("a", far), order("b", far)], 1, early=True)
    assert (clock.now_ms + 5, None) == ((await views.get(key("a"))).due_ms, await views.get(key("b")))
    assert ["kept"] == await cold.thaw([order("a", far)], 1, early=True)
    # Long gone when its own time comes.
    await cold.settle(1)
    await cold.link.call("HDEL", fixed_of(cold, TOPIC, "a")["jobs"], "mail/a")
    assert [None] == await cold.cancel([key("a")])
    with pytest.raises(JobNotFound):
        await cold.reschedule(key("a"), delay_ms=1)
    assert ["moved"] == await cold.thaw([order("a", far)], 2)


async def test_what_was_cancelled_cannot_be_rescheduled_but_what_was_rescheduled_can_be_cancelled(
    cold, clock
):
    await cold.cancel([key("a")])
    with pytest.raises(Conflict, match="cancelled"):
        await cold.reschedule(key("a"), delay_ms=1)
    await cold.reschedule(key("b"), delay_ms=1)
    assert ["accepted"] == await cold.cancel([key("b")])
    assert ["cancelled"] == await cold.thaw([order("b", clock.now_ms)], 1)


async def test_who_names_a_revision_has_seen_the_job_here_and_is_told_that_it_is_gone(cold):
    with pytest.raises(JobNotFound):
        await cold.reschedule(key("a"), delay_ms=1, revision=7)


async def test_without_a_table_of_far_future_jobs_an_unknown_job_is_unknown(store):
    assert [None] == await store.cancel([key("a")])
    with pytest.raises(JobNotFound):
        await store.reschedule(key("a"), delay_ms=1)


async def test_changes_are_forgotten_unless_they_were_made_anew(cold):
    await cold.cancel([key("a")])
    await cold.reschedule(key("b"), due_ms=2_000_000)
    assert 1 == await cold.settle(1, [(key("a"), b"cancelled"), (key("b"), b"due 7")])
    left = await cold.link.call("HGETALL", fixed_of(cold, TOPIC, "b")["overrides"])
    assert [b"mail/b", b"due 2000000"] == left
