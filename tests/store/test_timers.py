"""
Timers: what they are told, who leads, and what a process that goes leaves behind.
"""

from __future__ import annotations

import pytest

from duly.ids import new_request
from duly.job import JobKey, Order
from duly.store import Promise, Want
from tests.store.kit import claim, enqueue, key

CLAIM_KEPT_MS = 600_000  #: how long the last claim of a silent worker is kept
CHECK_MS = 50  #: how long after a wake-up the timers look whether anybody came


def told_of(store, raw):
    """
    What the timers were told so far: the topics with an earlier due time, and when to look who came.
    """
    found = []
    for _, fields in raw.xrange(store.keys[0].fixed["timer"]):
        told = dict(zip(fields[::2], fields[1::2], strict=True))
        words = told[b"dues"].decode().split()
        dues = {topic: int(due_ms) for topic, due_ms in zip(words[::2], words[1::2], strict=True)}
        found.append((dues, int(told[b"check_ms"] or 0)))
    return found


async def test_timers_are_told_of_a_new_earliest_due_time_of_a_topic_and_of_nothing_else(store, raw):
    for topic, delay_ms in (
        ("mail", 500),
        ("mail", 700),
        ("mail", 300),
        ("mail", 301),
        ("slow", 900),
        ("mail", 1),
    ):
        await enqueue(store, str(delay_ms), topic, delay_ms=delay_ms)
    assert [
        ({"mail": 1_000_500}, 0),
        ({"mail": 1_000_300}, 0),
        ({"slow": 1_000_900}, 0),
        ({"mail": 1_000_001}, 0),
    ] == told_of(store, raw)


async def test_one_call_tells_the_timers_once_of_all_its_topics(store, raw):
    await store.enqueue_many([Order(JobKey(f"t{at % 5}", str(at)), b"1", 100 + at) for at in range(50)])
    assert [({f"t{at}": 1_000_100 + at for at in range(5)}, 0)] == told_of(store, raw)


async def test_what_timers_are_told_is_kept_for_a_while_and_not_for_ever(store, raw):
    for at in range(2_500, 0, -1):
        await enqueue(store, str(at), delay_ms=at)
    assert 50 <= raw.xlen(store.keys[0].fixed["timer"]) <= 1_500


@pytest.mark.parametrize("how", ["enqueue", "release", "requeue", "recover", "thaw", "resume"])
async def test_timers_are_asked_to_look_later_whether_anybody_came_for_what_was_made_ready(
    store, raw, clock, how
):
    if how != "enqueue":
        await enqueue(store, "a")
        [lease] = await claim(store)
    match how:
        case "requeue":
            await store.ack(lease)
        case "resume":
            await store.pause("mail")
            await store.release(lease)
    clock.advance(s=16)
    before = told_of(store, raw)
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
        case "resume":
            await store.resume("mail")
    assert [*before, ({}, clock.now_ms + CHECK_MS)] == told_of(store, raw)


async def test_they_are_asked_for_it_once_in_a_while_only(store, raw, clock):
    await enqueue(store, "a")
    for at in range(CHECK_MS - 1):
        clock.advance(ms=1)
        await enqueue(store, str(at))
    assert [({}, 1_000_050)] == told_of(store, raw)
    clock.advance(ms=1)
    await enqueue(store, "b", "other")
    assert [({}, 1_000_050), ({}, 1_000_100)] == told_of(store, raw)


@pytest.mark.parametrize("how", ["retry", "reschedule", "replace", "hydrate", "thaw", "audit"])
async def test_whatever_makes_an_earlier_due_time_tells_the_timers(store, raw, clock, how):
    await enqueue(store, "far", delay_ms=900_000)
    await enqueue(store, "a")
    if how == "retry":
        [lease] = await claim(store)
    before, due_ms = told_of(store, raw), clock.now_ms + 50
    match how:
        case "retry":
            await store.retry(lease, 50)
        case "reschedule":
            await store.reschedule(key("a"), delay_ms=50)
        case "replace":
            await enqueue(store, "a", delay_ms=50, on_conflict="replace")
        case "hydrate":
            await store.hydrate([Promise(Order(key("b"), b"1", due_ms=due_ms), 1, new_request())])
        case "thaw":
            await store.thaw([Order(key("b"), b"1", due_ms=due_ms)], 1)
        case "audit":
            raw.delete(store.keys[0].due("mail"))
            due_ms = clock.now_ms
            await store.audit(0, ["mail/far"])
    *same, (dues, _) = told_of(store, raw)
    assert (before, {"mail": due_ms}) == (same, dues)


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


async def test_the_last_claim_of_a_worker_that_fell_silent_is_forgotten_before_the_worker_is(
    store, clock, raw
):
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
    assert ([b"alive"], {b"killed", b"alive"}) == (
        raw.hkeys(fixed["claims"]),
        set(raw.hkeys(fixed["workers"])),
    )
    clock.advance(s=24 * 3_600)
    await store.beat("alive", b"{}")
    assert [b"alive"] == raw.hkeys(fixed["workers"])
