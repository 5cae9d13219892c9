"""
What is due: promotion to the ready streams, and jobs that start without it.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.job import JobState, Lane, Order
from duly.store import Want
from tests.store.kit import claim, enqueue, key, order


async def test_a_claim_reports_due_jobs_of_topics_that_it_did_not_name(store, clock):
    await enqueue(store, "a", "mail", delay_ms=1)
    await enqueue(store, "a", "other", delay_ms=1)
    clock.advance(ms=1)
    claimed = await store.claim(0, [Want("mail", 5, 60_000)], worker="w", number=1)
    assert (["mail"], ("other",)) == ([lease.key.topic for lease in claimed.leases], claimed.look.unnamed)


async def test_promote_moves_the_due_jobs_of_a_hundred_topics_that_it_never_heard_of(store, clock, look):
    topics = [f"topic{at}" for at in range(100)]
    for topic in topics:
        await store.enqueue_many([order(str(at), topic, delay_ms=10) for at in range(2)])
    clock.advance(ms=10)
    seen = await store.promote(0, limit=200)
    assert (200, (), None) == (seen.moved, seen.unnamed, seen.next_due_ms)
    assert {} == look(*topics).due


async def test_promote_moves_the_earliest_first_and_says_when_the_next_is_due(store, clock, views):
    for at in (30, 10, 20, 99):
        await enqueue(store, str(at), delay_ms=at)
    clock.advance(ms=30)
    seen = await store.promote(0, ["mail"], limit=2)
    assert (2, 1_000_030) == (seen.moved, seen.next_due_ms)
    assert ["10", "20"] == [job.id for job in await views.peek("mail")]
    seen = await store.promote(0, ["mail"])
    assert (1, 1_000_099) == (seen.moved, seen.next_due_ms)


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
    [(("mail", "other"), {}), (("mail",), {"lane": Lane.low}), (("mail",), {"lane": Lane.high})],
)
async def test_what_is_due_of_several_kinds_is_sorted_into_its_lanes(store, clock, look, topics, options):
    await due_ten(store, clock, *topics, **options)
    assert 3 == len(await claim(store, *topics, limit=3))
    assert {} == look(*topics).due


async def test_a_job_with_priority_passes_those_that_were_due_before_it(store, clock):
    await due_ten(store, clock, "mail")
    await enqueue(store, "first", delay_ms=1, lane=Lane.high)
    clock.advance(ms=1)
    await claim(store, limit=1)
    assert ["first"] == [lease.key.id for lease in await claim(store, limit=1)]


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
    await claim(store, limit=2)
    assert {} == look().due, "it stands in line behind them"


@pytest.mark.parametrize("what", ["too late", "of another topic", "gone"])
async def test_a_due_job_starts_however_many_before_it_cannot(store, clock, raw, look, what):
    for at in range(5):
        match what:
            case "too late":
                await enqueue(store, str(at), delay_ms=1, expires_ms=clock() + 5)
            case "of another topic":
                await enqueue(store, str(at), "other", delay_ms=1)
            case "gone":
                raw.zadd(store.keys[0].fixed["due"], {f"mail/{at}": 1 + at})
    await enqueue(store, "good", delay_ms=2)
    clock.advance(ms=10)
    assert ["good"] == [lease.key.id for lease in await claim(store, limit=2)]
    look("mail", "other")


async def test_what_is_due_of_a_paused_topic_waits_for_no_slot(store, clock, look):
    await due_ten(store, clock, "mail")
    await store.pause("mail")
    assert [] == await claim(store, limit=2)
    assert {} == look().due
