"""
Crashes: leases that ran out, suspects that start again in halves, and jobs that run isolated.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.ids import new_request
from duly.job import JobState, Lane
from duly.store import Promise, Want
from tests.store.kit import claim, crash, enqueue, ids, key, order

HALF_MS, ROOM_MS = 100, 60_000  #: how long the other half, and a request to make room, stand


async def suspects(store, clock, count, *, waiting=()):
    """
    Jobs that crashed together, once, while some workers wait.
    """
    await store.enqueue_many([order(str(at)) for at in range(count)])
    assert count == len(await claim(store, limit=count, worker="lost"))
    clock.advance(s=16)
    for worker in waiting:
        assert [] == await claim(store, worker=worker, limit=40, wait_s=5)
    assert count == (await store.recover(0)).recovered


async def to_isolate(store, clock, *names, topic="mail"):
    """
    Jobs that crashed twice.
    """
    waiting = [order(name, topic, due_ms=clock.now_ms) for name in names]
    await store.hydrate([Promise(each, 1, new_request(), crashes=2) for each in waiting])


# -- what a crash makes of a job --------------------------------------------------------------------------


async def test_a_lost_lease_counts_a_crash_and_the_job_is_ready_again_at_once(store, views, clock, look):
    await enqueue(store, "a", max_crashes=5, lane=Lane.high)
    for crashes, lane in ((1, Lane.suspect), (2, Lane.isolated), (3, Lane.isolated), (4, Lane.isolated)):
        await crash(store, clock)
        job = await views.get(key("a"))
        assert (JobState.ready, crashes, clock.now_ms, 0) == (
            job.state,
            job.crashes,
            job.due_ms,
            job.attempts,
        )
        assert {"mail/a"} == set(look().streams["mail", lane].values())


async def test_a_job_may_crash_as_often_as_it_says(store, views, clock):
    await enqueue(store, "a", max_crashes=255)
    for crashes in range(1, 61):
        assert 1 == len(await crash(store, clock))
        job = await views.get(key("a"))
        assert (JobState.ready, crashes, clock.now_ms) == (job.state, job.crashes, job.due_ms)


async def test_too_many_crashes_bury_the_job_as_crashed(store, views, feed, clock):
    await enqueue(store, "a")
    for _ in range(3):
        await crash(store, clock)
    job = await views.get(key("a"))
    assert (JobState.dead, 3, 0) == (job.state, job.crashes, job.attempts)
    assert b'"type":"crashed"' in job.outcome
    _, events = await feed.read(0, None, 1000)
    assert ("buried", "crashed") == (events[-1].verb, events[-1].reason)


@pytest.mark.parametrize("max_crashes", [1, 2, 3, 4])
async def test_a_job_is_buried_for_no_crash_but_one_in_isolation(store, views, clock, max_crashes):
    await enqueue(store, "a", max_crashes=max_crashes)
    for crashes in range(1, max(3, max_crashes)):
        await crash(store, clock)
        assert (JobState.ready, crashes) == ((await views.get(key("a"))).state, crashes)
    await crash(store, clock)
    assert JobState.dead is (await views.get(key("a"))).state


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_failed_attempt_clears_a_job_of_its_crashes(store, views, clock, look, crashes):
    await enqueue(store, "a")
    for _ in range(crashes):
        await crash(store, clock)
    [lease] = await claim(store)
    await store.retry(lease, 10, b"{}", "Boom")
    assert (0, 1) == ((await views.get(key("a"))).crashes, (await views.get(key("a"))).attempts)
    clock.advance(ms=10)
    await store.promote(0)
    assert {"mail/a"} == set(look().streams["mail", Lane.normal].values())


async def test_a_snooze_does_not_clear_it(store, views, clock):
    await enqueue(store, "a")
    await crash(store, clock)
    await crash(store, clock)
    [lease] = await claim(store)
    await store.retry(lease, 10, counted=False)
    clock.advance(ms=10)
    assert [] == await claim(store, alone=False)
    assert [(2, Lane.isolated)] == [(lease.crashes, lease.lane) for lease in await claim(store)]


async def test_a_job_that_is_given_back_is_still_a_suspect(store, clock):
    await suspects(store, clock, 1)
    [lease] = await claim(store)
    await store.release(lease)
    assert [(1, Lane.suspect)] == [(lease.crashes, lease.lane) for lease in await claim(store)]


async def test_a_crash_that_is_not_counted_puts_the_job_straight_back(store, views, clock):
    await enqueue(store, "a", lane=Lane.high)
    [stale] = await claim(store)
    clock.advance(s=16)
    assert 1 == (await store.recover(0, counted=False)).recovered
    job = await views.get(key("a"))
    assert (JobState.ready, 0, "high") == (job.state, job.crashes, job.priority)
    [fresh] = await claim(store, alone=False)
    assert (1, Lane.high) == (fresh.attempt, fresh.lane)
    assert [False, True] == await store.extend(0, [stale, fresh])


async def test_a_crash_that_is_not_counted_leaves_a_suspect_in_its_half(store, clock):
    await suspects(store, clock, 2)
    before = {lease.key: lease.half for lease in await claim(store)}
    clock.advance(s=16)
    assert 2 == (await store.recover(0, counted=False)).recovered
    assert before == {lease.key: lease.half for lease in await claim(store)}


# -- suspects, in halves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 40])
async def test_all_that_crashed_together_start_again_at_once_beside_others(store, clock, look, count):
    await suspects(store, clock, count)
    await enqueue(store, "fresh")
    leases = await claim(store, limit=count + 5, alone=False)
    assert [0] + [1] * count == sorted(lease.crashes for lease in leases)
    assert abs(sum(lease.half for lease in leases if lease.crashes) - count / 2) <= 0.5
    look()


async def peer_of(store, name="t2"):
    """
    Another process that works: it holds the slot of a timer.
    """
    await store.promote(0, timer=name)


@pytest.mark.parametrize("other", ["a timer", "a waiting worker"])
async def test_two_workers_take_a_half_each_of_what_crashed_together(store, clock, look, other):
    await suspects(store, clock, 20, waiting=["w2"] if other == "a waiting worker" else [])
    if other == "a timer":
        await peer_of(store)
    one = await store.claim(0, [Want("mail", 40, 60_000)], worker="w1", timer="t1")
    [half] = {lease.half for lease in one.leases}
    assert (10, HALF_MS / 1000) == (len(one.leases), one.open_s)
    again = await store.claim(
        0, [Want("mail", 30, 60_000)], worker="w1", timer="t1", half=str(half), alone=False
    )
    assert [] == again.leases
    two = await claim(store, worker="w2", limit=40, timer="t2")
    assert {10: 1 - half} == {len(two): two[0].half}
    look()


async def test_the_other_half_is_open_to_everybody_after_a_moment(store, clock):
    await suspects(store, clock, 20)
    await peer_of(store)
    first = await claim(store, limit=40, timer="t1")
    half = str(first[0].half)
    clock.advance(ms=HALF_MS - 1)
    assert [] == await claim(store, limit=40, timer="t1", half=half, alone=False)
    clock.advance(ms=1)
    assert 10 == len(await claim(store, limit=40, timer="t1", half=half, alone=False))


async def test_a_worker_without_others_takes_both_halves(store, clock):
    await suspects(store, clock, 20)
    assert 20 == len(await claim(store, limit=40, timer="t1", half="1", alone=False))


async def test_a_worker_takes_more_of_the_half_that_it_runs(store, clock):
    await suspects(store, clock, 20)
    await peer_of(store)
    halves = [lease.half for _ in range(3) for lease in await claim(store, limit=3, timer="t1", half="1")]
    assert {1: True} == {half: len(halves) >= 6 for half in halves}


async def test_what_is_no_suspect_does_not_wait_behind_the_other_half(store, clock):
    await suspects(store, clock, 6)
    await peer_of(store)
    await enqueue(store, "fresh")
    taken = await claim(store, limit=40, timer="t1", half="0", alone=False)
    assert (3, ["fresh"]) == (
        sum(lease.crashes for lease in taken),
        [lease.key.id for lease in taken if not lease.crashes],
    )


# -- isolated ---------------------------------------------------------------------------------------------


async def test_a_job_that_crashed_twice_is_claimed_alone_by_a_worker_that_runs_nothing(store, clock, look):
    await to_isolate(store, clock, "a", "b")
    for id_ in ("x", "y"):
        await enqueue(store, id_)
    assert ["x", "y"] == ids(await claim(store, alone=False))
    for id_ in ("x2", "y2"):
        await enqueue(store, id_)
    assert [["a"], ["b"], ["x2", "y2"]] == sorted([ids(await claim(store)) for _ in range(3)])
    look()


async def test_an_isolated_job_is_alone_over_all_topics_of_a_claim(store, clock, look):
    for topic in ("a", "b", "c"):
        await to_isolate(store, clock, "1", topic=topic)
        await enqueue(store, "2", topic)
    taken = [await claim(store, "a", "b", "c", limit=20) for _ in range(4)]
    assert [["1"], ["1"], ["1"], ["2", "2", "2"]] == sorted(ids(leases) for leases in taken)
    assert 3 == len({leases[0].key.topic for leases in taken if len(leases) == 1})
    look("a", "b", "c")


async def test_where_each_gets_a_process_of_its_own_many_run_side_by_side(store, clock, look):
    await to_isolate(store, clock, "a", "b", "c")
    await enqueue(store, "fresh")
    claimed = await store.claim(0, [Want("mail", 3, 60_000, processes=3)], worker="w", alone=False)
    assert (["a", "b", "c"], False) == (ids(claimed.leases), claimed.room)
    claimed = await store.claim(0, [Want("mail", 3, 60_000, processes=3)], worker="w", alone=False)
    assert ["fresh"] == ids(claimed.leases)
    look()


async def test_a_job_that_runs_alone_is_not_taken_beside_those_in_processes_of_their_own(store, clock, look):
    for topic in ("apart", "here"):
        await to_isolate(store, clock, "1", topic=topic)
    wants = [Want("apart", 3, 60_000, processes=3), Want("here", 3, 60_000)]
    assert ["apart"] == [lease.key.topic for lease in (await store.claim(0, wants, worker="w1")).leases]
    assert ["here"] == [lease.key.topic for lease in (await store.claim(0, wants, worker="w2")).leases]
    look("apart", "here")


async def test_others_start_beside_those_in_processes_of_their_own(store, clock):
    await to_isolate(store, clock, "1", topic="apart")
    await enqueue(store, "2", "here")
    wants = [Want("apart", 3, 60_000, processes=3), Want("here", 3, 60_000)]
    assert {"1", "2"} == set(ids((await store.claim(0, wants, worker="w1")).leases))


async def asked_for_room(store, worker, *topics):
    wants = [Want(topic, 5, 60_000) for topic in topics or ("mail",)]
    return (await store.claim(0, wants, worker=worker, alone=False)).room


async def test_one_worker_at_a_time_is_asked_to_make_room_for_an_isolated_job(store, clock):
    await to_isolate(store, clock, "a")
    assert [True, False, True] == [await asked_for_room(store, worker) for worker in ("w1", "w2", "w1")]
    clock.advance(ms=ROOM_MS - 1)
    assert not await asked_for_room(store, "w2")
    clock.advance(ms=ROOM_MS + 1)
    assert [True, False] == [await asked_for_room(store, worker) for worker in ("w2", "w1")]


async def test_nobody_makes_room_where_nothing_has_to_run_isolated(store, clock):
    await enqueue(store, "fresh")
    assert not await asked_for_room(store, "w1")
    await to_isolate(store, clock, "a")
    [lease] = await claim(store)
    await enqueue(store, "next")
    assert not await asked_for_room(store, "w1"), "it runs already"
    await store.ack(lease)
    await enqueue(store, "last")
    assert not await asked_for_room(store, "w1")


async def test_a_worker_that_runs_nothing_is_not_asked_to_make_room(store, clock):
    await to_isolate(store, clock, "a", "b")
    claimed = await store.claim(0, [Want("mail", 5, 60_000)], worker="w1")
    assert (["a"], False) == (ids(claimed.leases), claimed.room)


async def test_an_isolated_job_that_is_cancelled_or_too_late_does_not_run(store, clock, look):
    await to_isolate(store, clock, "a", "b")
    late = order("late", due_ms=clock.now_ms, expires_ms=clock.now_ms + 5)
    await store.hydrate([Promise(late, 1, new_request(), crashes=2)])
    await store.cancel([key("a")])
    clock.advance(ms=6)
    taken = [id_ for _ in range(3) for id_ in ids(await claim(store))]
    assert ["b"] == taken
    look()


# -- recover ----------------------------------------------------------------------------------------------


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


@pytest.mark.usefixtures("chance")
async def test_jobs_that_have_to_run_isolated_do_not_make_all_others_wait(store, clock):
    for id_ in range(4):
        await enqueue(store, f"twice-{id_}")
    await crash(store, clock)
    clock.advance(s=1)
    await crash(store, clock)
    await store.enqueue_many([order(f"fresh-{number}") for number in range(40)])
    clock.advance(s=1)
    began = []
    for _ in range(24):
        # A worker that runs nothing, each time.
        leases = await claim(store, limit=2)
        began.append(leases[0].lane)
        for lease in leases:
            await store.ack(lease)
    # By chance the one or the other, and each of them before the last of the other.
    first = [began.index(lane) for lane in (Lane.isolated, Lane.normal)]
    assert max(first) < 10
    assert 4 == began.count(Lane.isolated)
