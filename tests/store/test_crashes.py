"""
Crashes: leases that ran out, and suspects that are claimed one at a time.
"""

from __future__ import annotations

import asyncio

from duly.job import JobState, Lane
from tests.store.kit import claim, crash, enqueue, key


async def test_a_lost_lease_counts_a_crash_and_the_job_comes_back_later_each_time(store, views, clock):
    await enqueue(store, "a", max_crashes=5)
    for crashes, wait_ms in ((1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000)):
        await crash(store, clock)
        job = await views.get(key("a"))
        assert (JobState.scheduled, crashes, clock.now_ms + wait_ms, 0) == (
            job.state,
            job.crashes,
            job.due_ms,
            job.attempts,
        )
        clock.advance(ms=wait_ms - 1)
        assert [] == await claim(store)
        clock.advance(ms=1)


async def test_the_wait_of_a_suspect_has_a_limit(store, views, clock):
    await enqueue(store, "a", max_crashes=255)
    for _ in range(60):
        await crash(store, clock)
        job = await views.get(key("a"))
        assert job.due_ms - clock.now_ms <= 24 * 3_600_000
        clock.now_ms = job.due_ms
    assert 60 == job.crashes


async def test_too_many_crashes_bury_the_job_as_crashed(store, views, feed, clock):
    await enqueue(store, "a")
    for _ in range(3):
        await crash(store, clock)
        clock.advance(s=10)
    job = await views.get(key("a"))
    assert (JobState.dead, 3, 0) == (job.state, job.crashes, job.attempts)
    assert b'"type":"crashed"' in job.outcome
    _, events = await feed.read(0, None, 1000)
    assert ("buried", "crashed") == (events[-1].verb, events[-1].reason)


async def test_a_job_may_say_how_many_crashes_it_may_have(store, views, clock):
    await enqueue(store, "once", max_crashes=1)
    await crash(store, clock)
    assert JobState.dead is (await views.get(key("once"))).state


async def test_one_suspect_at_a_time_is_claimed_so_that_innocents_are_not_buried_with_it(store, clock):
    for id_ in ("a", "b", "c"):
        await enqueue(store, id_)
    await crash(store, clock)
    clock.advance(s=1)
    await enqueue(store, "fresh")
    first = await claim(store, limit=10)
    assert [("fresh", 0), ("suspect", 1)] == sorted(
        (("suspect" if lease.crashes else lease.key.id), lease.crashes) for lease in first
    )
    assert [] == await claim(store, suspects=False)
    assert [1] == [lease.crashes for lease in await claim(store, suspects=True)]


async def test_a_claim_takes_as_many_suspects_as_it_says_and_no_more(store, clock):
    for number in range(6):
        await enqueue(store, f"j{number}")
    await crash(store, clock)
    clock.advance(s=1)
    await enqueue(store, "fresh")
    crashes = sorted(lease.crashes for lease in await claim(store, limit=10, suspects=4))
    assert [0, 1, 1, 1, 1] == crashes
    assert [1, 1] == [lease.crashes for lease in await claim(store, limit=10, suspects=4)]


async def test_one_suspect_at_a_time_over_all_topics_of_a_claim(store, clock):
    for topic in ("a", "b"):
        await enqueue(store, "1", topic)
    await crash(store, clock, "a", "b")
    clock.advance(s=1)
    assert 1 == len(await claim(store, "a", "b"))


async def test_a_crash_that_is_not_counted_puts_the_job_straight_back(store, views, clock):
    await enqueue(store, "a", lane=Lane.high)
    [stale] = await claim(store)
    clock.advance(s=16)
    assert 1 == (await store.recover(0, counted=False)).recovered
    job = await views.get(key("a"))
    assert (JobState.ready, 0, "high") == (job.state, job.crashes, job.priority)
    [fresh] = await claim(store, suspects=False)
    assert (1, Lane.high) == (fresh.attempt, fresh.lane)
    assert [False, True] == await store.extend(0, [stale, fresh])


async def test_recover_takes_nothing_whose_lease_still_runs(store, clock):
    await enqueue(store, "a")
    await claim(store)
    clock.advance(ms=14_999)
    assert (0, 0, 1_015_000) == (await store.recover(0))[1:]
    clock.advance(ms=1)
    assert (1, 0, None) == (await store.recover(0))[1:]


async def test_recover_finds_leases_of_topics_that_it_never_heard_of(store, clock, look):
    topics = [f"t{at}" for at in range(80)]
    for topic in topics:
        await enqueue(store, "1", topic)
    for at in range(0, 80, 20):
        await claim(store, *topics[at : at + 20], limit=20)
    clock.advance(s=16)
    assert 80 == (await store.recover(0)).recovered
    look(*topics)


async def test_a_worker_is_told_to_stop_a_run_that_was_recovered(store, clock):
    await enqueue(store, "a")
    channel = store.keys[0].fixed["stop"]
    heard = store.link.listen(channel)
    assert ("", b"") == await anext(heard)
    [lease] = await crash(store, clock)
    assert (channel, f"mail/a {lease.token}".encode()) == await asyncio.wait_for(anext(heard), 5)
    await heard.aclose()
