"""
Claims: how much they take, of what, and what stands in their way.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from duly.job import JobState, Lane
from duly.store import Want
from tests.store.kit import claim, enqueue, ids, key, order

KIB = 1024


# -- how many ---------------------------------------------------------------------------------------------


async def test_a_claim_takes_no_more_than_the_free_slots_of_each_topic(store, look):
    for at in range(5):
        for topic in ("a", "b", "c"):
            await enqueue(store, str(at), topic)
    wants = [Want("a", 1, 60_000), Want("b", 3, 60_000), Want("c", 9, 60_000)]
    leases = (await store.claim(0, wants, worker="w", number=1)).leases
    assert {"a": 1, "b": 3, "c": 5} == Counter(lease.key.topic for lease in leases)
    look("a", "b", "c")


@pytest.mark.parametrize("limit", [1, 2, 5, 7])
async def test_a_claim_takes_no_more_than_its_limit(store, look, limit):
    for at in range(4):
        for topic in ("a", "b"):
            await enqueue(store, str(at), topic, lane=Lane(at % 3))
    assert limit == len(await claim(store, "a", "b", limit=limit, free=4))
    look("a", "b")


async def test_a_claim_of_a_topic_without_free_slots_takes_nothing_of_it(store):
    await enqueue(store, "1", "full")
    await enqueue(store, "1", "idle")
    wants = [Want("full", 0, 60_000), Want("idle", 1, 60_000)]
    assert ["idle"] == [
        lease.key.topic for lease in (await store.claim(0, wants, worker="w", number=8)).leases
    ]


async def test_a_claim_that_wants_nothing_gets_nothing(store):
    await enqueue(store, "1")
    assert [] == (await store.claim(0, [], worker="w", number=1)).leases


async def test_what_is_claimed_leaves_its_stream_for_a_lease(store, look):
    await asyncio.gather(*(enqueue(store, str(at), lane=Lane(at % 3)) for at in range(90)))
    await asyncio.gather(*(claim(store, worker=f"w{at}", limit=7) for at in range(9)))
    shard = look()
    in_line = [member for stream in shard.streams.values() for member in stream.values()]
    running = {member: job for member, job in shard.jobs.items() if job.state is JobState.running}
    assert (27, 63) == (len(in_line), len(running))
    assert shard.leases.keys() == running.keys()
    assert 63 == len({job.token for job in running.values()})


@pytest.mark.parametrize("state", ["running", "ready"])
async def test_entries_of_a_release_that_kept_them_to_the_end_are_no_jobs(store, raw, look, state):
    await store.enqueue_many([order(str(at)) for at in range(3)])
    stream = store.keys[0].stream("mail", Lane.normal)
    entries = raw.xrange(stream)
    leases = await claim(store, limit=2)
    if state == "ready":
        await store.release(leases[0])
    raw.delete(stream)
    for entry, fields in entries:
        raw.execute_command("XADD", stream, entry, *fields)
    assert ["2"] == ids(await claim(store, limit=9))


async def test_two_workers_never_get_the_same_job(store):
    await store.enqueue_many([order(str(at)) for at in range(100)])
    claims = await asyncio.gather(*(claim(store, worker=f"w{at}", limit=8) for at in range(16)))
    got = [lease.key.id for leases in claims for lease in leases]
    assert 100 == len(got) == len(set(got))


# -- bytes ------------------------------------------------------------------------------------------------


async def test_bodies_beyond_a_mebibyte_stay_ready_in_their_order(store, look):
    names = [f"{at:02}" for at in range(12)]
    for name in names:
        await enqueue(store, name, payload=b"x" * (300 * KIB))
    got = []
    while leases := await claim(store, limit=20):
        assert len(leases) <= 4
        got.append(ids(leases))
        look()
    assert names == [name for part in got for name in part]
    assert 4 == len(got)


async def test_the_byte_limit_holds_over_many_topics(store, look):
    topics = [f"t{at}" for at in range(8)]
    for topic in topics:
        await enqueue(store, "1", topic, payload=b"x" * (600 * KIB))
    total = 0
    while leases := await claim(store, *topics, limit=20):
        assert sum(len(lease.payload) for lease in leases) <= KIB * KIB
        total += len(leases)
        look(*topics)
    assert 8 == total


async def test_a_body_larger_than_the_limit_is_claimed_alone(store, look):
    await enqueue(store, "small", payload=b"x")
    await enqueue(store, "large", payload=b"x" * (1500 * KIB))
    await enqueue(store, "last", payload=b"x")
    got = [ids(await claim(store)) for _ in range(3)]
    assert [["small"], ["large"], ["last"]] == got
    look()


# -- what stands in the way -------------------------------------------------------------------------------


async def test_an_outdated_entry_is_dropped_when_met(store, raw, look):
    await enqueue(store, "a")
    keys = store.keys[0]
    number = raw.hincrby(keys.fixed["meta"], "sequence", 2)
    raw.xadd(keys.stream("mail", Lane.normal), {"job": "mail/gone"}, id=f"{number - 1}-0")
    raw.xadd(keys.stream("mail", Lane.normal), {"job": "mail/a"}, id=f"{number}-0")
    await enqueue(store, "b")
    assert ["a", "b"] == ids(await claim(store)) + ids(await claim(store))
    look()


@pytest.mark.parametrize("member", ["mail/gone", "other/gone", "no slash at all"])
async def test_an_id_without_a_job_at_the_head_of_due_does_not_block_the_line(
    store, raw, clock, look, member
):
    await enqueue(store, "a", delay_ms=100)
    raw.zadd(store.keys[0].fixed["due"], {member: 1})
    clock.advance(ms=100)
    assert 1 == (await store.promote(0)).moved
    assert {} == look().due
    assert ["a"] == ids(await claim(store))


async def test_a_member_of_due_whose_job_is_not_scheduled_is_dropped_from_it(store, raw, look):
    await enqueue(store, "a")
    raw.zadd(store.keys[0].fixed["due"], {"mail/a": 1})
    assert ["a"] == ids(await claim(store))
    look()


async def test_a_stream_whose_group_is_gone_is_read_from_its_beginning(store, raw, look):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await enqueue(store, "b")
    raw.xgroup_destroy(store.keys[0].stream("mail", Lane.normal), "duly")
    assert ["b"] == ids(await claim(store))
    await store.ack(lease)
    assert {JobState.succeeded, JobState.running} == {job.state for job in look().jobs.values()}


# -- fairness ---------------------------------------------------------------------------------------------


async def test_no_topic_starves_under_load(store):
    topics = [f"t{at}" for at in range(10)]
    await store.enqueue_many([order(str(at), topic) for topic in topics for at in range(20)])
    taken = Counter()
    for number in range(40):
        leases = await claim(store, *topics, limit=3, number=number)
        taken.update(lease.key.topic for lease in leases)
    assert 120 == taken.total()
    assert min(taken[topic] for topic in topics) >= 8


async def test_no_lane_starves_under_load(store):
    for lane in (Lane.high, Lane.normal, Lane.low):
        await store.enqueue_many([order(f"{lane.name}{at}", lane=lane) for at in range(100)])
    taken = Counter()
    for number in range(48):
        taken.update(lease.lane for lease in await claim(store, limit=2, number=number))
    assert 96 == taken.total()
    assert taken[Lane.high] > taken[Lane.normal] + taken[Lane.low]
    assert taken[Lane.low] >= 12


async def test_a_name_of_a_worker_may_be_long_and_strange(store, views, feed):
    name = "host\twith\nparts/" + "é" * 300
    await enqueue(store, "a")
    await store.beat(name, b"{}")
    [lease] = await claim(store, worker=name)
    assert name == (await views.get(key("a"))).worker
    await store.ack(lease)
    _, events = await feed.read(0, None)
    assert [("enqueued", ""), ("claimed", name), ("acked", "")] == [
        (event.verb, event.worker) for event in events
    ]
