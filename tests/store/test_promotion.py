"""
What is due: promotion to the ready streams, and jobs that start without it.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from duly.job import JobState, Lane, Order
from duly.store import Want
from tests.store.kit import claim, enqueue, ids, index_of, key, order


async def test_a_claim_leaves_topics_alone_that_it_does_not_name(store, clock, look):
    await enqueue(store, "a", "mail", delay_ms=1)
    await enqueue(store, "a", "other", delay_ms=1)
    clock.advance(ms=1)
    claimed = await store.claim(0, [Want("mail", 5, 60_000)], worker="w")
    assert (["mail"], 1_000_001) == ([lease.key.topic for lease in claimed.leases], claimed.look.next_due_ms)
    assert {"other/a": 1_000_001} == look("mail", "other").due
    assert 1 == (await store.promote(0)).moved


async def promote_all(store, limit=128):
    """
    What a timer does; how many calls moved how many jobs.
    """
    moved = []
    while True:
        seen = await store.promote(0, limit=limit)
        moved.append(seen.moved)
        if not seen.more and not seen.unnamed:
            assert seen.next_due_ms is None or seen.next_due_ms > seen.now_ms
            return moved, seen


async def test_promote_moves_the_due_jobs_of_a_hundred_topics_that_it_never_heard_of(store, clock, look):
    topics = [f"topic{at}" for at in range(100)]
    for topic in topics:
        await store.enqueue_many([order(str(at), topic, delay_ms=10) for at in range(2)])
    clock.advance(ms=10)
    moved, seen = await promote_all(store)
    assert (200, None) == (sum(moved), seen.next_due_ms)
    assert len(moved) <= 4
    assert {} == look(*topics).due


async def test_one_topics_herd_does_not_hold_up_another(store, clock, look):
    await store.enqueue_many([order(str(at), "bulk", delay_ms=10) for at in range(1_000)])
    await enqueue(store, "now", "urgent", delay_ms=20)
    clock.advance(ms=20)
    seen = await store.promote(0)
    shard = look("bulk", "urgent")
    assert "urgent/now" in shard.streams["urgent", Lane.normal].values()
    assert (True, 128 > seen.moved > 60) == (seen.more, True)


@pytest.mark.parametrize("foreign", [1, 1_000])
async def test_no_call_walks_a_herd_before_a_job_of_another_topic(store, clock, raw, foreign):
    herd, most = 4_000, 128

    def still_scheduled() -> int:
        flat = raw.execute_command("HGETALL", index_of(store, "topics"))
        told = dict(zip(flat[::2], flat[1::2], strict=True))
        return sum(int(count) for field, count in told.items() if re.fullmatch(rb"herd-.*:scheduled", field))

    await store.enqueue_many([order(str(at), f"herd-{at % foreign}", delay_ms=900) for at in range(herd)])
    await enqueue(store, "now", "urgent", delay_ms=1_000)
    clock.advance(ms=1_000)
    # A worker that looks by itself at the due time: its first call brings the job and moves none of the herd.
    [lease] = (await store.claim(0, [Want("urgent", 5, 60_000)], worker="w")).leases
    assert ("now", herd) == (lease.key.id, still_scheduled())
    # One that serves the herd as well has its job from the first call, too, which walks no more than its cap.
    await enqueue(store, "next", "urgent", delay_ms=1)
    clock.advance(ms=1)
    wants = [Want("herd-0", 5, 60_000), Want("urgent", 5, 60_000)]
    claimed = await store.claim(0, wants, worker="w", wait_s=60)
    assert "next" in [lease.key.id for lease in claimed.leases]
    assert herd - most <= still_scheduled() < herd
    # Timers move the herd in parts, none larger than it may be.
    moves, _ = await promote_all(store, most)
    assert (0, most) == (still_scheduled(), max(moves))


async def test_what_falls_due_behind_a_herd_is_moved_by_the_call_after_the_next(store, clock, look):
    await store.enqueue_many([order(str(at), "bulk", delay_ms=10) for at in range(1_000)])
    clock.advance(ms=10)
    assert 128 == (await store.promote(0)).moved
    await enqueue(store, "now", "urgent", delay_ms=5)
    clock.advance(ms=5)
    seen = await store.promote(0)
    if "urgent" in seen.unnamed:
        seen = await store.promote(0)
    assert "urgent/now" in look("bulk", "urgent").streams["urgent", Lane.normal].values()
    moved, _ = await promote_all(store)
    assert {"urgent/now", *(f"bulk/{at}" for at in range(1_000))} == look("bulk", "urgent").jobs.keys()
    assert len(moved) <= 9


async def test_what_a_topic_leaves_of_its_part_is_for_the_others(store, clock, look):
    for topic, count in (("few", 3), ("some", 20), ("many", 200)):
        await store.enqueue_many([order(str(at), topic, delay_ms=10) for at in range(count)])
    clock.advance(ms=10)
    assert 23 < (await store.promote(0, limit=100)).moved <= 100
    shard = look("few", "some", "many")
    left = {topic: sum(member.startswith(topic) for member in shard.due) for topic in ("few", "some", "many")}
    assert (0, 0) == (left["few"], left["some"])


async def test_topics_that_nobody_serves_do_not_hold_up_one_that_falls_due_among_them(store, clock, look):
    foreign = [f"foreign{at}" for at in range(200)]
    for topic in foreign:
        await enqueue(store, "1", topic, delay_ms=10)
    await enqueue(store, "1", "served", delay_ms=10)
    clock.advance(ms=10)
    assert 201 == sum((await promote_all(store))[0])
    await enqueue(store, "2", "served", delay_ms=10)
    clock.advance(ms=10)
    assert 1 == (await store.promote(0)).moved
    look("served", *foreign)


async def test_a_topic_that_stands_in_the_index_with_nothing_due_is_taken_out(store, clock, raw, look):
    await enqueue(store, "later", delay_ms=1_000)
    raw.zadd(store.keys[0].fixed["next_due"], {"mail": 5, "nothing": 6})
    seen = await store.promote(0)
    assert (0, (), 1_001_000) == (seen.moved, seen.unnamed, seen.next_due_ms)
    raw.zadd(store.keys[0].fixed["next_due"], {"mail": 5})
    assert [] == await claim(store)
    look("mail", "nothing")


async def test_promote_moves_the_earliest_first_and_says_when_the_next_is_due(store, clock, views):
    for at in (30, 10, 20, 99):
        await enqueue(store, str(at), delay_ms=at)
    clock.advance(ms=30)
    seen = await store.promote(0, limit=2)
    assert (2, 1_000_030) == (seen.moved, seen.next_due_ms)
    assert ["10", "20"] == [job.id for job in await views.peek("mail")]
    seen = await store.promote(0)
    assert (1, 1_000_099) == (seen.moved, seen.next_due_ms)


async def test_a_job_that_is_due_brings_none_that_is_due_a_millisecond_later(store, clock):
    for at in (10, 11, 20, 21):
        await enqueue(store, str(at), delay_ms=at)
    clock.advance(ms=10)
    assert ["10"] == ids(await claim(store))
    clock.advance(ms=10)
    assert 2 == (await store.promote(0)).moved
    assert ["11", "20"] == ids(await claim(store))


async def test_any_number_of_timers_promotes_each_job_once(store, clock, look):
    await store.enqueue_many([order(str(at), f"t{at % 5}", delay_ms=10) for at in range(300)])
    clock.advance(ms=10)
    moved = await asyncio.gather(*(store.promote(0, limit=50) for _ in range(8)))
    while (more := await store.promote(0)).moved:
        moved.append(more)
    assert 300 == sum(seen.moved for seen in moved)
    look(*(f"t{at}" for at in range(5)))


async def test_on_the_clock_of_the_server_an_immediate_job_is_ready_at_once(live):
    placed = [await live.enqueue(Order(key(str(at)), b"1")) for at in range(20)]
    assert {JobState.ready} == {one.state for one in placed}
    assert 20 == len(await claim(live, limit=50))


async def test_on_the_clock_of_the_server_a_delay_counts_from_the_next_whole_millisecond(live):
    before = await live.link.call("TIME")
    placed = await live.enqueue(Order(key("a"), b"1", delay_ms=5_000))
    earliest_us = int(before[0]) * 1_000_000 + int(before[1]) + 5_000_000
    assert placed.due_ms * 1000 >= earliest_us


# -- what stays in its line -------------------------------------------------------------------------------


async def due_ten(store, clock, *topics, **options):
    for at in range(10):
        await enqueue(store, str(at), topics[at % len(topics)], delay_ms=1 + at, **options)
    clock.advance(ms=20)


async def test_what_is_due_beyond_the_free_slots_stays_in_its_order(store, clock, look, feed):
    await due_ten(store, clock, "mail")
    assert ["0", "1", "2"] == [lease.key.id for lease in await claim(store, limit=3)]
    assert 7 == len(look().due)
    assert ["3", "4"] == [lease.key.id for lease in await claim(store, limit=2)]
    assert 5 == len(look().due)
    assert {"enqueued", "claimed"} == {event.verb for event in (await feed.read(0, None))[1]}


@pytest.mark.parametrize(
    ("topics", "options"),
    [(("mail",), {"lane": Lane.low}), (("mail",), {"lane": Lane.high}), (("mail",), {"lane": Lane.callback})],
)
async def test_what_is_due_of_several_lanes_is_sorted_into_them(store, clock, look, topics, options):
    await due_ten(store, clock, *topics, **options)
    callbacks = options["lane"] is Lane.callback
    assert 3 == len(await claim(store, *topics, limit=3, callbacks=callbacks))
    assert {} == look(*topics).due


async def test_what_is_due_of_several_topics_stays_in_the_order_of_each(store, clock, look):
    await due_ten(store, clock, "mail", "other")
    taken = [lease.key.member for _ in range(3) for lease in await claim(store, "mail", "other", limit=2)]
    shard = look("mail", "other")
    assert 4 == len(shard.due)
    for topic in ("mail", "other"):
        mine = [member for member in taken if member.startswith(topic)]
        assert mine == sorted(mine)
        assert all(member > mine[-1] for member in shard.due if mine and member.startswith(topic))


async def test_a_job_with_priority_passes_those_that_were_due_before_it(store, clock, chance):
    await store.enqueue_many([order(f"{at:02}", delay_ms=1) for at in range(60)])
    await store.enqueue_many([order(f"high{at:02}", delay_ms=2, lane=Lane.high) for at in range(20)])
    clock.advance(ms=5)
    await claim(store, limit=1)
    taken = [lease.key.id for _ in range(30) for lease in await claim(store, limit=1)]
    assert 20 == sum(id_.startswith("high") for id_ in taken)


async def test_a_full_worker_wakes_another_for_what_stays_due(store, clock, raw):
    await due_ten(store, clock, "mail")
    wake = store.keys[0].wake("mail")
    await claim(store, limit=9)
    assert 1 == raw.llen(wake)
    await claim(store, limit=5)
    assert 0 == raw.llen(wake), "nothing is left to wake for"


async def test_what_is_due_gets_its_turn_behind_a_backlog_of_ready_jobs(store, clock, look):
    for at in range(6):
        await enqueue(store, f"ready{at}")
    await enqueue(store, "due", delay_ms=1)
    clock.advance(ms=1)
    assert ["ready0", "ready1"] == [lease.key.id for lease in await claim(store, limit=2)]
    assert 1 == (await store.promote(0)).moved
    await enqueue(store, "last")
    rest = [lease.key.id for _ in range(3) for lease in await claim(store, limit=2)]
    assert ["ready2", "ready3", "ready4", "ready5", "due", "last"] == rest
    look()


@pytest.mark.parametrize("what", ["too late", "of another topic", "gone"])
async def test_a_due_job_starts_however_many_before_it_cannot(store, clock, raw, look, what):
    for at in range(5):
        match what:
            case "too late":
                await enqueue(store, str(at), delay_ms=1, expires_ms=clock() + 5)
            case "of another topic":
                await enqueue(store, str(at), "other", delay_ms=1)
            case "gone":
                raw.zadd(index_of(store, "due"), {f"mail/{at}": 1 + at})
    await enqueue(store, "good", delay_ms=2)
    clock.advance(ms=10)
    assert ["good"] == [lease.key.id for lease in await claim(store, limit=2)]
    look("mail", "other")


async def test_what_is_due_of_a_paused_topic_waits_for_no_slot(store, clock, look):
    await due_ten(store, clock, "mail")
    await store.pause("mail")
    assert [] == await claim(store, limit=2)
    assert 10 == (await store.promote(0)).moved
    assert {} == look().due
