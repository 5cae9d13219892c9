"""
Waking: who waits for work hears of it, with as many tokens as there is work for.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.store.kit import claim, crash, enqueue, key, order


async def ready_wait(store, *topics):
    """
    A wait that has certainly begun.
    """
    waiting = asyncio.create_task(store.wait(topics or ("mail",), 60))
    while not int(
        (await store.link.call("INFO", "clients")).decode().partition("blocked_clients:")[2].split()[0]
    ):
        await asyncio.sleep(0)
    return waiting


@pytest.mark.parametrize("how", ["enqueue", "promote", "release", "requeue", "resume"])
async def test_a_waiting_worker_wakes_when_work_becomes_ready(store, clock, raw, how):
    await enqueue(store, "a", delay_ms=100 if how == "promote" else 0)
    lease = None
    if how != "promote":
        [lease] = await claim(store)
    match how:
        case "requeue":
            await store.ack(lease)
        case "resume":
            await store.pause("mail")
            await store.release(lease)
    raw.delete(store.keys[0].wake("mail"))
    waiting = await ready_wait(store)
    match how:
        case "enqueue":
            await enqueue(store, "b")
        case "promote":
            clock.advance(ms=100)
            await store.promote(0)
        case "release":
            await store.release(lease)
        case "requeue":
            await store.requeue([key("a")])
        case "resume":
            await store.resume("mail")
    assert await asyncio.wait_for(waiting, 30)
    assert 1 == len(await claim(store))


async def test_a_wait_for_another_topic_sleeps_on(store):
    waiting = await ready_wait(store, "other")
    await enqueue(store, "a")
    assert [] == await claim(store, "other")
    assert not waiting.done()
    await enqueue(store, "b", "other")
    assert await asyncio.wait_for(waiting, 30)


async def test_a_wait_in_vain_says_so(store):
    assert not await store.wait(["mail"], 0.01)


async def test_there_are_as_many_tokens_as_jobs_and_never_more_than_sixteen(store, look):
    await store.enqueue_many([order(str(at)) for at in range(3)])
    assert 3 == look().wakes["mail"]
    await store.enqueue_many([order(str(at)) for at in range(3, 60)])
    assert 16 == look().wakes["mail"]


async def test_a_claim_that_leaves_work_passes_a_token_on_and_one_that_empties_takes_them_away(
    store, raw, look
):
    await store.enqueue_many([order(str(at)) for at in range(5)])
    raw.delete(store.keys[0].wake("mail"))
    await claim(store, limit=2)
    assert 1 == look().wakes["mail"]
    await claim(store, limit=2)
    assert 1 == look().wakes["mail"]
    await claim(store, limit=2)
    assert 0 == look().wakes["mail"]


async def test_a_claim_that_is_full_passes_on_the_token_of_a_topic_that_it_did_not_come_to(store, raw, look):
    await enqueue(store, "1", "a")
    await enqueue(store, "1", "b")
    for topic in ("a", "b"):
        raw.delete(store.keys[0].wake(topic))
    [lease] = await claim(store, "a", "b", limit=1)
    left = {"a", "b"} - {lease.key.topic}
    assert dict.fromkeys(left, 1) == {
        topic: number for topic, number in look("a", "b").wakes.items() if number
    }


async def test_a_claim_that_may_take_no_suspect_does_not_wake_itself_for_ever(store, raw, clock, look):
    await enqueue(store, "a")
    await crash(store, clock)
    clock.advance(s=1)
    await store.promote(0)
    raw.delete(store.keys[0].wake("mail"))
    assert [] == await claim(store, suspects=False)
    assert 0 == look().wakes["mail"]
