"""
Shares: what becomes ready together is divided among the workers that wait for it, for a moment.
"""

from __future__ import annotations

import random

import pytest

from duly.job import Lane
from duly.store import Want
from tests.store.kit import enqueue, ids, order

SHARE_MS = 20  #: how long a part is kept for the worker that it is for
WAIT_S = 5.0


async def ask(store, worker, slots=40, *, topic="mail", wait_s=WAIT_S, limit=None):
    """
    A claim of a worker that waits for more if slots stay free.
    """
    wants = [Want(topic, slots, 60_000)]
    return await store.claim(
        0, wants, worker=worker, limit=slots if limit is None else limit, wait_s=wait_s, alone=False
    )


async def all_wait(store, *workers, slots=40, topic="mail"):
    for worker in workers:
        assert [] == (await ask(store, worker, slots, topic=topic)).leases


async def come(store, clock, how, count=30, **options):
    """
    Make jobs ready together.
    """
    match how:
        case "enqueue_many":
            await store.enqueue_many([order(f"{at:03}", **options) for at in range(count)])
        case "due":
            await store.enqueue_many([order(f"{at:03}", delay_ms=10, **options) for at in range(count)])
            clock.advance(ms=10)
        case "promote":
            await store.enqueue_many([order(f"{at:03}", delay_ms=10, **options) for at in range(count)])
            clock.advance(ms=10)
            assert count == (await store.promote(0)).moved


HOW = pytest.mark.parametrize("how", ["enqueue_many", "due", "promote"])


@HOW
@pytest.mark.parametrize("lane", [Lane.normal, Lane.high])
async def test_three_waiting_workers_take_a_third_each(store, clock, look, how, lane):
    await all_wait(store, "w1", "w2", "w3")
    await come(store, clock, how, lane=lane)
    taken = {worker: ids((await ask(store, worker)).leases) for worker in ("w2", "w3", "w1")}
    assert {"w1": 10, "w2": 10, "w3": 10} == {worker: len(some) for worker, some in taken.items()}
    assert 30 == len({id_ for some in taken.values() for id_ in some})
    look()


@HOW
async def test_whichever_order_they_come_in_nobody_gets_over_half(store, clock, how):
    drawn = random.Random(3)
    for _ in range(20):
        workers = ["w1", "w2", "w3"]
        await all_wait(store, *workers)
        drawn.shuffle(workers)
        await come(store, clock, how)
        sizes = []
        for worker in workers:
            leases = (await ask(store, worker)).leases
            sizes.append(len(leases))
            for lease in leases:
                await store.cancel([lease.key])
                await store.forget([(lease.key, 2**52)])
        assert (30, True) == (sum(sizes), max(sizes) <= 15)
        clock.advance(ms=100)


@HOW
async def test_free_slots_decide_how_large_a_part_is(store, clock, how):
    await all_wait(store, "small", slots=10)
    await all_wait(store, "large", slots=30)
    await come(store, clock, how, 40)
    assert 10 == len((await ask(store, "small", 10)).leases)
    assert 30 == len((await ask(store, "large", 30)).leases)


@HOW
async def test_a_worker_alone_takes_all(store, clock, how):
    await all_wait(store, "w1")
    await come(store, clock, how)
    claimed = await ask(store, "w1")
    assert (30, None) == (len(claimed.leases), claimed.open_s)


@HOW
async def test_a_part_that_is_not_fetched_in_time_is_open_to_everybody(store, clock, look, how):
    await all_wait(store, "w1", "w2", "dead")
    await come(store, clock, how)
    first = await ask(store, "w1")
    assert (10, SHARE_MS / 1000) == (len(first.leases), first.open_s)
    clock.advance(ms=SHARE_MS - 1)
    again = await ask(store, "w1")
    assert ([], 0.001) == (again.leases, again.open_s)
    clock.advance(ms=1)
    rest = await ask(store, "w1")
    assert (20, None) == (len(rest.leases), rest.open_s)
    look()


@HOW
async def test_a_worker_that_waits_no_longer_does_not_count(store, clock, how):
    await all_wait(store, "w1", "w2")
    clock.advance(ms=round(WAIT_S * 1000))
    await all_wait(store, "w1")
    await come(store, clock, how)
    assert 30 == len((await ask(store, "w1")).leases)


async def test_a_worker_that_goes_on_waiting_counts_all_the_time(store, clock):
    await all_wait(store, "w1", "w2")
    for _ in range(6):
        clock.advance(ms=round(WAIT_S * 900))
        await all_wait(store, "w1", "w2")
    await come(store, clock, "enqueue_many")
    assert 15 == len((await ask(store, "w1")).leases)


async def test_a_worker_that_asks_without_waiting_takes_itself_off_the_list(store, clock, raw):
    await all_wait(store, "w1", "w2")
    await ask(store, "w2", wait_s=0.0)
    await come(store, clock, "enqueue_many")
    assert 30 == len((await ask(store, "w1", wait_s=0.0)).leases)
    assert None is raw.hget(store.keys[0].fixed["topics"], "mail:waiting")


async def test_a_full_worker_does_not_wait(store, clock):
    await all_wait(store, "w1", "w2")
    await ask(store, "w2", 0)
    await come(store, clock, "enqueue_many", 12)
    assert 12 == len((await ask(store, "w1")).leases)


async def test_who_waits_for_another_topic_does_not_count(store, clock):
    await all_wait(store, "w1")
    await all_wait(store, "w2", topic="other")
    await come(store, clock, "enqueue_many")
    assert 30 == len((await ask(store, "w1")).leases)


async def test_the_slots_that_are_free_now_are_what_counts(store, clock):
    await all_wait(store, "w1", "w2")
    await come(store, clock, "enqueue_many")
    assert 3 == len((await ask(store, "w1", 4)).leases), "of 44 free slots it has 4"
    assert 27 == len((await ask(store, "w2")).leases)


async def test_one_job_is_for_whoever_comes_first(store, clock):
    await all_wait(store, "w1", "w2", "w3")
    for at in range(5):
        await enqueue(store, str(at))
        claimed = await ask(store, "w2")
        assert [str(at)] == ids(claimed.leases)


async def test_what_waited_before_is_divided_with_nobody(store, clock):
    await store.enqueue_many([order(str(at)) for at in range(10)])
    clock.advance(ms=SHARE_MS)
    wants = [Want("mail", 40, 60_000)]
    for worker in ("w2", "w3"):
        await store.claim(0, wants, worker=worker, limit=0, wait_s=WAIT_S)
    assert 10 == len((await ask(store, "w1")).leases)


async def test_a_part_left_behind_wakes_those_that_it_is_for(store, clock, raw):
    await all_wait(store, "w1", "w2")
    await come(store, clock, "due", 4)
    assert 2 == len((await ask(store, "w1")).leases)
    assert raw.llen(store.keys[0].wake("mail")) >= 1
    assert 2 == len((await ask(store, "w2")).leases)
    assert 0 == raw.llen(store.keys[0].wake("mail"))


async def test_shares_hold_for_each_topic_of_a_claim(store, clock):
    wants = [Want(topic, 10, 60_000) for topic in ("a", "b")]
    for worker in ("w1", "w2"):
        await store.claim(0, wants, worker=worker, limit=20, wait_s=WAIT_S)
    await store.enqueue_many([order(str(at), topic) for topic in ("a", "b") for at in range(6)])
    leases = (await store.claim(0, wants, worker="w1", limit=20, wait_s=WAIT_S)).leases
    assert ["a", "a", "a", "b", "b", "b"] == sorted(lease.key.topic for lease in leases)


async def test_no_more_waiting_workers_are_remembered_than_there_is_room_for(store, raw, clock):
    for at in range(50):
        await all_wait(store, f"w{at}")
    assert len(raw.hget(store.keys[0].fixed["topics"], "mail:waiting")) <= 33 * 18
    await come(store, clock, "enqueue_many", 99)
    assert 3 == len((await ask(store, "w49")).leases)


@HOW
async def test_nothing_is_lost_or_taken_twice_however_workers_come_and_go(store, clock, look, how):
    drawn = random.Random(7)
    await all_wait(store, "w1", "w2", "w3", "w4")
    await come(store, clock, how, 100)
    taken = []
    for _ in range(200):
        worker = drawn.choice(["w1", "w2", "w3", "w4"])
        claimed = await ask(store, worker, drawn.randint(1, 9), wait_s=drawn.choice([0.0, WAIT_S]))
        taken += ids(claimed.leases)
        clock.advance(ms=drawn.randint(0, 9))
        look()
        if len(taken) == 100:
            break
    assert [f"{at:03}" for at in range(100)] == sorted(taken)
