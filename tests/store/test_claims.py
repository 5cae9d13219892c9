"""
Claims: how much they take, of what, and what stands in their way.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from duly.job import JobState, Lane
from duly.namespace import create
from duly.store import Store, Want
from tests.store.kit import claim, enqueue, ids, index_of, key, order

KIB = 1024


# -- how many ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [0, 10])
async def test_a_claim_takes_no_more_than_the_free_slots_of_each_topic(store, look, clock, delay_ms):
    for at in range(5):
        for topic in ("a", "b", "c"):
            await enqueue(store, str(at), topic, delay_ms=delay_ms)
    clock.advance(ms=10)
    wants = [Want("a", 1, 60_000), Want("b", 3, 60_000), Want("c", 9, 60_000)]
    leases = (await store.claim(0, wants, worker="w")).leases
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
    assert ["idle"] == [lease.key.topic for lease in (await store.claim(0, wants, worker="w")).leases]


async def test_a_claim_that_wants_nothing_gets_nothing(store):
    await enqueue(store, "1")
    assert [] == (await store.claim(0, [], worker="w")).leases


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
    raw.zadd(index_of(store, "due"), {member: 1})
    clock.advance(ms=100)
    assert 1 == (await store.promote(0)).moved
    assert {} == look().due
    assert ["a"] == ids(await claim(store))


async def test_a_member_of_due_whose_job_is_not_scheduled_is_dropped_from_it(store, raw, look):
    await enqueue(store, "a")
    raw.zadd(index_of(store, "due"), {"mail/a": 1})
    raw.zadd(store.keys[0].fixed["next_due"], {"mail": 1})
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


WEIGHTS = {Lane.high: 16, Lane.normal: 4, Lane.low: 1}


async def served(store, topics, claims, *, limit=1, shards=1):
    """
    How many of the jobs of some claims are of which shard, topic and lane, where none ever runs short.
    """
    taken = Counter()
    for number in range(claims):
        shard = number % shards
        wants = [Want(topic, limit, 60_000) for topic in topics]
        leases = (await store.claim(shard, wants, worker="w", limit=limit)).leases
        assert limit == len(leases)
        taken.update((shard, lease.key.topic, lease.lane) for lease in leases)
        # They go back to the end of their lines.
        await asyncio.gather(*map(store.release, leases))
    return taken


def least_share(taken, total):
    """
    How much the worst off has got of what its weight says.
    """
    return min(shares_of(taken, total))


def shares_of(taken, total):
    return [taken[cell] / (taken.total() * WEIGHTS[cell[2]] / total) for cell in taken]


@pytest.mark.parametrize("limit", [1, 16])
async def test_no_topic_starves_under_load(store, chance, limit):
    topics = [f"t{at}" for at in range(10)]
    await store.enqueue_many([order(str(at), topic) for topic in topics for at in range(limit)])
    taken = await served(store, topics, 800, limit=limit)
    assert 10 == len(taken)
    assert least_share(taken, 10 * WEIGHTS[Lane.normal]) >= 0.5


@pytest.mark.parametrize("limit", [1, 16])
async def test_no_lane_starves_under_load(store, chance, limit):
    for lane in WEIGHTS:
        await store.enqueue_many([order(f"{lane.name}{at}", lane=lane) for at in range(limit)])
    taken = await served(store, ["mail"], 400, limit=limit)
    assert 3 == len(taken)
    shares = shares_of(taken, sum(WEIGHTS.values()))
    assert 0.5 <= min(shares) <= max(shares) <= 1.5, taken


@pytest.mark.parametrize("busy", [(Lane.high, Lane.low), (Lane.normal, Lane.low), (Lane.high, Lane.normal)])
async def test_a_lane_beside_one_that_is_empty_has_its_weight(store, chance, busy):
    for lane in WEIGHTS:
        await enqueue(store, lane.name, lane=lane)
    await store.cancel([key(lane.name) for lane in WEIGHTS if lane not in busy])
    taken = await served(store, ["mail"], 400)
    assert set(busy) == {lane for _, _, lane in taken}
    assert least_share(taken, sum(WEIGHTS[lane] for lane in busy)) >= 0.5


async def test_no_lane_of_any_topic_starves(store, chance):
    topics = ["a", "b"]
    await store.enqueue_many([order(lane.name, topic, lane=lane) for topic in topics for lane in WEIGHTS])
    taken = await served(store, topics, 1_500)
    assert 6 == len(taken)
    assert least_share(taken, 2 * sum(WEIGHTS.values())) >= 0.5


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("count", [2, 4])
async def test_no_topic_of_any_shard_starves_however_shards_take_turns(
    link, namespace, chance, shards, count
):
    await create(link, f"{namespace}x", shards)
    store, topics = Store(link, namespace=f"{namespace}x", shards=shards), [f"t{at}" for at in range(count)]
    await store.enqueue_many([order(str(at), topic) for topic in topics for at in range(20)])
    taken = await served(store, topics, 100 * shards * count, shards=shards)
    assert shards * count == len(taken)
    assert least_share(taken, shards * count * WEIGHTS[Lane.normal]) >= 0.5


async def test_neighbours_among_empty_topics_have_equal_shares(store, chance):
    topics = ["a", "b", *(f"empty{at}" for at in range(8))]
    for topic in ("a", "b"):
        await enqueue(store, "1", topic)
    taken = await served(store, topics, 400)
    assert min(taken.values()) >= 160
    await enqueue(store, "1", "empty4")
    taken = await served(store, topics, 600)
    assert min(taken.values()) >= 150


async def test_a_claim_of_five_hundred_topics_finds_the_one_that_has_something(store, look):
    topics = [f"t{at}" for at in range(500)]
    await enqueue(store, "1", "t499")
    assert ["t499"] == [lease.key.topic for lease in await claim(store, *topics)]


# -- lanes in use -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [Lane.high, Lane.low, Lane.callback])
@pytest.mark.parametrize(
    "back", ["promote", "retry", "reschedule", "release", "recover", "requeue", "cancel"]
)
async def test_a_lane_that_claims_found_empty_is_looked_into_again_as_soon_as_it_is_used(
    store, clock, look, lane, back
):
    callbacks = lane is Lane.callback
    await enqueue(store, "a", lane=lane, delay_ms=100 if back == "promote" else 0)
    lease = None if back in ("promote", "reschedule") else (await claim(store, callbacks=callbacks))[0]
    if back == "requeue":
        await store.bury(lease)
    elif back == "cancel":
        await store.cancel([key("a")])
    elif back == "reschedule":
        await store.reschedule(key("a"), delay_ms=50)
    for at in range(3):
        await enqueue(store, f"n{at}")
        await claim(store)
        await claim(store, callbacks=True)
    match back:
        case "retry":
            await store.retry(lease, 10)
        case "release":
            await store.release(lease)
        case "recover":
            await store.extend(0, [lease])
            clock.advance(s=16)
            await store.recover(0, counted=False)
        case "requeue" | "cancel":
            await store.requeue([key("a")])
    clock.advance(ms=100)
    await store.promote(0)
    assert "mail/a" in look().streams["mail", lane].values()
    assert "a" in ids(await claim(store, callbacks=callbacks))


async def test_a_job_of_higher_priority_that_falls_due_later_still_comes_first(store, clock, chance):
    """
    Also where the lane was empty for long: the index of what is due knows no lanes.
    """
    await store.enqueue_many([order(f"high{at}", lane=Lane.high, delay_ms=100) for at in range(10)])
    await store.enqueue_many([order(f"low{at}", delay_ms=50) for at in range(90)])
    for at in range(3):
        await enqueue(store, f"now{at}")
        await claim(store)
    clock.advance(ms=100)
    taken = [id_ for _ in range(20) for id_ in ids(await claim(store, limit=1))]
    assert sum(id_.startswith("high") for id_ in taken) == 10


# -- topics that a worker does not name at once -----------------------------------------------------------


async def test_a_broad_claim_says_which_of_its_topics_have_more(store, clock):
    topics = ["some", "none", "due", "later", "paused"]
    for topic in ("some", "paused"):
        await store.enqueue_many([order(str(at), topic) for at in range(3)])
    await enqueue(store, "1", "due", delay_ms=10)
    await enqueue(store, "1", "later", delay_ms=99)
    await store.pause("paused")
    clock.advance(ms=10)
    claimed = await store.claim(0, [Want(topic, 1, 60_000) for topic in topics], worker="w", broad=True)
    assert {"some", "due"} == {lease.key.topic for lease in claimed.leases}
    assert "some" in claimed.rest
    assert not {"none", "later", "paused"} & set(claimed.rest)
    narrow = await store.claim(0, [Want("some", 1, 60_000)], worker="w")
    assert (1, ()) == (len(narrow.leases), narrow.rest)


async def test_the_shard_knows_the_topics_that_have_ready_jobs(store, clock):
    for at in range(30):
        await enqueue(store, "1", f"t{at}", delay_ms=10 if at % 2 else 0)

    async def ready():
        return sorted([topic async for page in store.ready_topics(0, 10) for topic in page])

    assert sorted(f"t{at}" for at in range(0, 30, 2)) == await ready()
    clock.advance(ms=10)
    while (await store.promote(0)).moved:
        pass
    assert sorted(f"t{at}" for at in range(30)) == await ready()
    await claim(store, *(f"t{at}" for at in range(3, 30)), limit=30)
    assert ["t0", "t1", "t2"] == await ready()


@pytest.mark.parametrize("how", ["enqueue", "promote", "release", "recover", "resume"])
async def test_a_broad_worker_hears_which_topics_were_made_ready(store, clock, how):
    await enqueue(store, "1", delay_ms=10 if how == "promote" else 0)
    leases = [] if how == "promote" else await claim(store)
    if how == "resume":
        await store.pause("mail")
        await store.release(leases[0])
    await store.claim(0, [Want("other", 1, 60_000)], worker="w", broad=True)
    waiting = asyncio.create_task(store.wait_broadly([b"0"], 30))
    match how:
        case "enqueue":
            await enqueue(store, "2")
        case "promote":
            clock.advance(ms=10)
            await store.promote(0)
        case "release":
            await store.release(leases[0])
        case "resume":
            await store.resume("mail")
        case "recover":
            clock.advance(s=16)
            await store.claim(0, [Want("other", 1, 60_000)], worker="w", broad=True)
            await store.recover(0)
    [(shard, place, names)] = await waiting
    assert (0, ["mail"]) == (shard, names)
    assert [] == await store.wait_broadly([place], 0.01)


async def test_where_no_worker_is_broad_nothing_is_written_for_any(store, raw, clock):
    await enqueue(store, "1")
    await store.claim(0, [Want("other", 1, 60_000)], worker="w", broad=True)
    clock.advance(s=11)
    await enqueue(store, "2")
    assert 0 == raw.xlen(store.keys[0].fixed["woken_topics"])


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
