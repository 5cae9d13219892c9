"""
The pruner forgets by age and by bytes, a bounded number at a time; the auditor mends what disagrees.
"""

from __future__ import annotations

import logging

from duly.job import JobState
from duly.services.auditor import Auditor
from duly.services.pruner import Pruner
from duly.store import Keeping, Store
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
    small = Store(link, namespace=store.namespace, keeping=Keeping(done_bytes=2_000), now=clock)
    await finish(store, *(f"j{number}" for number in range(40)))
    pruner = Pruner(small)
    while await pruner.run_once():
        pass
    left = await link.call("ZCARD", store.keys[0].fixed["done"])
    assert 0 < left < 20


async def test_open_jobs_are_never_forgotten(store, views, clock):
    await enqueue(store, "waiting", delay_ms=400 * 24 * 3_600_000)
    await enqueue(store, "ready")
    clock.advance(s=300 * 24 * 3600)
    assert 0 == await Pruner(store).run_once()
    assert [JobState.scheduled, JobState.ready] == [
        job.state for job in await views.get_many([key("waiting"), key("ready")])
    ]


async def test_a_consumer_that_is_behind_a_full_stream_is_warned_about(link, namespace, clock, caplog):
    from duly.feed import Feed
    from duly.namespace import create

    await create(link, f"{namespace}full", 1, clock="test", max_event_rows=10)
    store = Store(link, namespace=f"{namespace}full", now=clock)
    await Feed(store).commit("reader", 0, None)
    await finish(store, "a", "b", "c")
    with caplog.at_level(logging.WARNING):
        await Pruner(store).run_once()
    assert "a registered consumer is behind" in caplog.text


async def test_an_auditor_mends_a_lost_index_in_passing(store, views):
    await enqueue(store, "a", delay_ms=60_000)
    await enqueue(store, "b")
    [lease] = await claim(store)
    await store.link.call("DEL", store.keys[0].fixed["leases"])
    auditor = Auditor(store)
    for _ in range(30):
        assert 0 == await auditor.run_once(), "never in a hurry"
    assert 1 == await store.link.call("ZCARD", store.keys[0].fixed["leases"])
    await store.ack(lease)
