"""
The pruner forgets by age and by bytes, a bounded number at a time; the auditor mends what disagrees.
"""

from __future__ import annotations

import logging

from duly.feed import Feed
from duly.job import JobState
from duly.namespace import create
from duly.services.auditor import Auditor
from duly.services.pruner import Pruner
from duly.store import Keeping, Store
from tests.shards import ids_on, on_all, one_id_on_each
from tests.store.kit import claim, enqueue, key


async def finish(store, *ids: str) -> None:
    for id_ in ids:
        await enqueue(store, id_)
        [lease] = await claim(store)
        await store.ack(lease, b'"done"')


async def test_ended_jobs_are_forgotten_after_their_time(store, views, clock):
    await finish(store, "old")
    clock.advance(s=12 * 3600)
    await finish(store, "young")
    pruner = Pruner(store)
    assert 0 == await pruner.run_once()
    clock.advance(s=12 * 3600 + 1)
    assert 1 == await pruner.run_once()
    assert [None, JobState.succeeded] == [
        job and job.state for job in await views.get_many([key("old"), key("young")])
    ]


async def test_the_oldest_are_forgotten_beyond_the_bytes(link, store, clock):
    small = Store(
        link, namespace=store.namespace, shards=store.shards, keeping=Keeping(done_bytes=2_000), now=clock
    )
    await finish(store, *(f"j{number}" for number in range(40)))
    pruner = Pruner(small)
    while await pruner.run_once():
        pass
    left = await on_all(store, "done", "ZCARD")
    assert sum(left) < 20
    assert min(left) > 0, "each shard keeps its part of the bytes"


async def test_open_jobs_are_never_forgotten(store, views, clock):
    await enqueue(store, "waiting", delay_ms=400 * 24 * 3_600_000)
    await enqueue(store, "ready")
    clock.advance(s=300 * 24 * 3600)
    assert 0 == await Pruner(store).run_once()
    assert [JobState.scheduled, JobState.ready] == [
        job.state for job in await views.get_many([key("waiting"), key("ready")])
    ]


async def test_a_consumer_that_is_behind_a_full_stream_is_warned_about(
    link, namespace, shards, clock, caplog
):
    await create(link, f"{namespace}full", shards, clock="test", max_event_rows=10)
    store = Store(link, namespace=f"{namespace}full", shards=shards, now=clock)
    for shard in range(shards):
        await Feed(store).commit("reader", shard, None)
        await finish(store, *ids_on(store, "mail", shard, 3))
    with caplog.at_level(logging.WARNING):
        await Pruner(store).run_once()
    for shard in range(shards):
        assert f"shard {shard}: the event stream is" in caplog.text
    assert "a registered consumer is behind" in caplog.text


async def test_every_shard_is_pruned_and_its_events_trimmed(link, namespace, shards, clock):
    await create(link, f"{namespace}full", shards, clock="test", max_event_rows=20)
    store = Store(link, namespace=f"{namespace}full", shards=shards, now=clock)
    feed = Feed(store)
    await finish(store, *one_id_on_each(store, "mail"))
    for shard in range(store.shards):
        await feed.commit("reader", shard, await feed.last(shard))
    clock.advance(s=24 * 3600 + 1)
    assert store.shards == await Pruner(store).run_once()
    assert [0] * store.shards == await on_all(store, "jobs", "HLEN")
    # The last entry of each that was committed stays, and the entry of its prune.
    assert [2] * store.shards == await on_all(store, "events", "XLEN")


async def test_what_consumers_have_read_stays_for_others_while_there_is_room(store):
    feed = Feed(store)
    await finish(store, *one_id_on_each(store, "mail"))
    for shard in range(store.shards):
        await feed.commit("record", shard, await feed.last(shard))
    before = await on_all(store, "events", "XLEN")
    await Pruner(store).run_once()
    assert before == await on_all(store, "events", "XLEN")


async def test_an_auditor_mends_a_lost_index_of_every_shard_in_passing(store, views):
    for id_ in one_id_on_each(store, "mail", "later"):
        await enqueue(store, id_, delay_ms=60_000)
    for id_ in one_id_on_each(store, "mail"):
        await enqueue(store, id_)
    leases = await claim(store)
    await on_all(store, "leases", "DEL")
    auditor = Auditor(store)
    for _ in range(30 * store.shards):
        assert 0 == await auditor.run_once(), "never in a hurry"
    assert [1] * store.shards == await on_all(store, "leases", "ZCARD")
    for lease in leases:
        await store.ack(lease)


async def test_an_auditor_ends_the_expired_jobs_of_every_shard_that_no_worker_takes(store, views, clock):
    ids = one_id_on_each(store, "nobody")
    for id_ in ids:
        await enqueue(store, id_, topic="nobody", expires_ms=clock.now_ms + 1_000)
    clock.advance(s=2)
    auditor = Auditor(store)
    for _ in range(30 * store.shards):
        await auditor.run_once()
    assert [JobState.cancelled] * store.shards == [(await views.get(key(id_, "nobody"))).state for id_ in ids]
    assert [0] * store.shards == await on_all(store, "ready_topics", "SCARD")
