"""
Timers: what they are told, who leads, and what a process that goes leaves behind.
"""

from __future__ import annotations

import pytest

from duly.job import JobKey, Order
from duly.store import Want
from tests.store.kit import claim, enqueue, key


CLAIM_KEPT_MS = 600_000  #: how long the last claim of a silent worker is kept
CHECK_MS = 50  #: how long after a wake-up the timers look whether anybody came


def fields_of(fields):
    return dict(zip(fields[::2], fields[1::2], strict=True))


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
    assert {b"due_ms": b"1000001", b"topic": b"mail"}.items() <= fields_of(fields).items()


async def last_told(store, raw):
    [[entry, fields]] = raw.xrange(store.keys[0].fixed["timer"])
    return entry, {name.decode(): value.decode() for name, value in fields_of(fields).items()}


@pytest.mark.parametrize("how", ["enqueue", "release", "requeue", "recover", "thaw"])
async def test_timers_are_asked_to_look_later_whether_anybody_came_for_what_was_made_ready(
    store, raw, clock, how
):
    await enqueue(store, "far", "other", delay_ms=900_000)
    if how != "enqueue":
        await enqueue(store, "a")
        [lease] = await claim(store)
    if how == "requeue":
        await store.ack(lease)
    clock.advance(s=16)
    match how:
        case "enqueue":
            await enqueue(store, "a")
        case "release":
            await store.release(lease)
        case "requeue":
            await store.requeue([key("a")])
        case "recover":
            await store.recover(0)
        case "thaw":
            await store.thaw([Order(key("b"), b"1", due_ms=clock.now_ms)], 1)
    _, told = await last_told(store, raw)
    assert {"due_ms": "1900000", "topic": "mail", "check_ms": str(clock.now_ms + CHECK_MS)} == told


async def test_they_are_asked_for_it_once_in_a_while_only(store, raw, clock):
    await enqueue(store, "a")
    first, told = await last_told(store, raw)
    assert {"due_ms": "", "topic": "mail", "check_ms": "1000050"} == told
    for at in range(CHECK_MS - 1):
        clock.advance(ms=1)
        await enqueue(store, str(at))
    assert (first, told) == await last_told(store, raw)
    clock.advance(ms=1)
    await enqueue(store, "b", "other")
    _, told = await last_told(store, raw)
    assert {"due_ms": "", "topic": "other", "check_ms": "1000100"} == told


async def test_a_new_due_time_does_not_hide_that_they_were_asked_to_look(store, raw, clock):
    await enqueue(store, "a")
    await enqueue(store, "later", delay_ms=5_000)
    _, told = await last_told(store, raw)
    assert {"due_ms": "1005000", "topic": "mail", "check_ms": "1000050"} == told


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
    claimed = await store.claim(0, wants, worker="w", timer="t1")
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
        assert (await store.claim(shard, [Want("mail", 10, 60_000)], worker="w1")).leases
    await store.beat("w1", b"")
    left = [raw.hlen(keys.fixed["claims"]) for keys in store.keys]
    assert ([0, 0, 0], 0) == (left, raw.hlen(store.keys[0].fixed["workers"]))


async def test_the_last_claim_of_a_worker_that_fell_silent_is_forgotten_before_the_worker_is(store, clock, raw):
    fixed = store.keys[0].fixed
    for worker in ("killed", "alive"):
        await enqueue(store, worker)
        await store.beat(worker, b"{}")
        assert 1 == len(await claim(store, worker=worker))
    clock.advance(ms=CLAIM_KEPT_MS - 1)
    await store.beat("alive", b"{}")
    assert {b"killed", b"alive"} == set(raw.hkeys(fixed["claims"]))
    clock.advance(ms=1)
    await store.beat("alive", b"{}")
    assert ([b"alive"], {b"killed", b"alive"}) == (raw.hkeys(fixed["claims"]), set(raw.hkeys(fixed["workers"])))
    clock.advance(s=24 * 3_600)
    await store.beat("alive", b"{}")
    assert [b"alive"] == raw.hkeys(fixed["workers"])
