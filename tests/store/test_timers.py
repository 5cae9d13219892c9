"""
Timers: what they are told, who leads, and what a process that goes leaves behind.
"""

from __future__ import annotations

import pytest

from duly.job import JobKey, Order
from duly.store import Want
from tests.store.kit import claim, enqueue, key


async def test_the_timer_stream_tells_of_a_new_earliest_due_time_and_of_nothing_else(store, raw):
    async def told(delay_ms):
        before = (
            raw.xinfo_stream(store.keys[0].fixed["timer"])
            if raw.exists(store.keys[0].fixed["timer"])
            else None
        )
        await enqueue(store, str(delay_ms), delay_ms=delay_ms)
        return before != raw.xinfo_stream(store.keys[0].fixed["timer"])

    assert [True, False, True, False, True] == [await told(ms) for ms in (500, 700, 300, 301, 1)]
    assert 1 == raw.xlen(store.keys[0].fixed["timer"])
    [[_, fields]] = raw.xrange(store.keys[0].fixed["timer"])
    assert [b"due_ms", b"1000001"] == fields


@pytest.mark.parametrize("how", ["retry", "reschedule", "recover"])
async def test_whatever_makes_an_earlier_due_time_tells_the_timers(store, raw, clock, how):
    await enqueue(store, "far", delay_ms=900_000)
    await enqueue(store, "a")
    if how != "reschedule":
        [lease] = await claim(store)
    before = raw.xrange(store.keys[0].fixed["timer"])
    match how:
        case "retry":
            await store.retry(lease, 50)
        case "reschedule":
            await store.reschedule(key("a"), delay_ms=50)
        case "recover":
            clock.advance(s=16)
            await store.recover(0)
    assert before != raw.xrange(store.keys[0].fixed["timer"])


async def test_three_timers_stand_in_line_and_the_others_only_scan(store, clock):
    async def rank(name, role="auto"):
        return (await store.promote(0, timer=name, role=role)).rank

    assert [0, 1, 2, 3, 0, 1] == [await rank(name) for name in ("a", "b", "c", "d", "a", "b")]
    clock.advance(ms=4_500)
    assert 1 == await rank("b")
    clock.advance(ms=600)
    assert [0, 2, 1] == [await rank("d"), await rank("e"), await rank("b")]
    assert 3 == (await store.promote(0)).rank


async def test_a_follower_never_leads_and_a_leader_takes_the_lead(store, clock):
    async def rank(name, role):
        return (await store.promote(0, timer=name, role=role)).rank

    assert 3 == await rank("f", "follower")
    assert 0 == await rank("a", "auto")
    assert 0 == await rank("boss", "leader")
    assert 1 == await rank("a", "auto")


async def test_a_claim_holds_the_timer_of_its_process(store):
    wants = [Want("mail", 1, 60_000)]
    claimed = await store.claim(0, wants, worker="w", number=1, timer="t1")
    assert 0 == claimed.look.rank
    assert 1 == (await store.promote(0, timer="t2")).rank


async def test_a_worker_that_says_good_bye_leaves_nothing_behind_on_any_shard(link, namespace, clock, raw):
    from duly.namespace import create
    from duly.store import Store

    await create(link, namespace, 3, clock="test")
    store = Store(link, namespace=namespace, shards=3, now=clock)
    await store.enqueue_many([Order(JobKey("mail", str(at)), b"1") for at in range(12)])
    await store.beat("w1", b"{}")
    for shard in range(3):
        assert (await store.claim(shard, [Want("mail", 10, 60_000)], worker="w1", number=1)).leases
    await store.beat("w1", b"")
    left = [raw.hlen(keys.fixed["claims"]) for keys in store.keys]
    assert ([0, 0, 0], 0) == (left, raw.hlen(store.keys[0].fixed["workers"]))
