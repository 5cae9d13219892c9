"""
Waking: who waits for work hears of it, with as many tokens as there is work for.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.shards import one_id_on_each
from tests.store.kit import claim, crash, enqueue, ids, key, order


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


@pytest.mark.several_shards
@pytest.mark.parametrize("broad", [False, True], ids=["by topic", "broadly"])
async def test_a_waiting_worker_wakes_on_whichever_shard_work_becomes_ready(store, broad):
    for shard, id_ in enumerate(one_id_on_each(store, "mail")):
        assert [] == await claim(store, wait_s=60, broad=broad)
        places = [await store.woken_place(each) for each in range(store.shards)]
        await enqueue(store, id_)
        if broad:
            [(told, _, names)] = await store.wait_broadly(places, 30)
            assert (shard, ["mail"]) == (told, names)
        else:
            assert await store.wait(("mail",), 30)
        assert [id_] == ids(await claim(store))


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


async def test_a_topic_with_ready_jobs_that_nobody_comes_for_is_given_a_token_again(store, raw, look):
    await enqueue(store, "a")
    await enqueue(store, "b", "served")
    raw.delete(store.keys[0].wake("mail"))  # taken by a worker that died
    assert () == (await store.promote(0)).rewoken, "only who is asked to looks"
    seen = await store.promote(0, check=True)
    assert (("mail",), 0) == (seen.rewoken, seen.moved)
    assert {"mail": 1, "served": 1} == look("mail", "served").wakes
    assert () == (await store.promote(0, check=True)).rewoken
    assert 1 == len(await claim(store))
    assert () == (await store.promote(0, check=True)).rewoken


@pytest.mark.parametrize("why", ["paused", "callback", "empty"])
async def test_a_topic_that_no_worker_may_claim_from_is_given_none(store, raw, look, why):
    await enqueue(store, "a")
    match why:
        case "paused":
            await store.pause("mail")
        case "callback":
            await store.set_callback("mail", "https://example.com/")
        case "empty":
            await claim(store)
    raw.delete(store.keys[0].wake("mail"))
    for _ in range(3):
        assert () == (await store.promote(0, check=True)).rewoken
    assert 0 == look().wakes["mail"]


async def test_every_topic_that_nobody_comes_for_is_found_among_many(store, raw):
    topics = [f"t{at}" for at in range(100)]
    for topic in topics:
        await enqueue(store, "1", topic)
    for topic in topics[::10]:
        raw.delete(store.keys[0].wake(topic))
    found = set()
    for _ in range(400):
        found.update((await store.promote(0, check=True)).rewoken)
        if len(found) == 10:
            break
    assert set(topics[::10]) == found


async def test_a_check_among_many_topics_that_all_have_tokens_comes_to_an_end(store):
    for at in range(200):
        await enqueue(store, "1", f"t{at}")
    for _ in range(5):
        assert () == (await asyncio.wait_for(store.promote(0, check=True), 20)).rewoken


async def test_what_falls_due_at_the_same_time_does_not_keep_a_check_from_being_made(store, clock, raw):
    await enqueue(store, "1", "forsaken")
    raw.delete(store.keys[0].wake("forsaken"))
    await store.enqueue_many([order(str(at), delay_ms=10) for at in range(300)])
    clock.advance(ms=10)
    seen = await store.promote(0, check=True)
    assert ("forsaken",) == seen.rewoken
    assert seen.moved


async def test_a_claim_that_may_not_isolate_does_not_wake_itself_for_ever(store, raw, clock, look):
    await enqueue(store, "a")
    await crash(store, clock)
    await crash(store, clock)
    raw.delete(store.keys[0].wake("mail"))
    assert [] == await claim(store, alone=False)
    assert 0 == look().wakes["mail"]
