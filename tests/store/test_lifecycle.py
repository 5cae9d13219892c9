"""
Each verb in each state, as the table of the design says.
"""

from __future__ import annotations

from collections import Counter

import pytest

from duly.errors import Conflict, JobExists, JobNotFound, LeaseLost
from duly.job import JobState, Lane
from tests.store.kit import claim, enqueue, key, order


async def test_a_job_is_claimed_when_due_and_not_before(store, clock):
    placed = await enqueue(store, "a", delay_ms=500)
    assert ("created", 1_000_500, JobState.scheduled) == (placed.word, placed.due_ms, placed.state)
    clock.advance(ms=499)
    assert [] == await claim(store)
    clock.advance(ms=1)
    [lease] = await claim(store)
    assert ("a", 1, 1_015_500, b"{}") == (lease.key.id, lease.attempt, lease.expires_ms, lease.payload)


async def test_an_immediate_job_is_ready_at_once(store, views):
    assert JobState.ready is (await enqueue(store, "a")).state
    assert ["a"] == [job.id for job in await views.peek("mail")]


async def test_a_due_time_in_the_past_is_due_now(store, clock):
    placed = await enqueue(store, "a", due_ms=5)
    assert (clock.now_ms, JobState.ready) == (placed.due_ms, placed.state)


async def test_an_acked_job_has_succeeded_and_keeps_its_result(store, views, clock):
    await enqueue(store, "a", payload=b'{"n":1}')
    [lease] = await claim(store)
    clock.advance(ms=20)
    await store.ack(lease, b'"fine"', lateness_ms=3)
    job = await views.get(key("a"))
    assert (JobState.succeeded, b'"fine"', 1, 3, b'{"n":1}') == (
        job.state,
        job.outcome,
        job.attempts,
        job.lateness_ms,
        job.payload,
    )
    assert (1_000_000, 1_000_020) == (job.started_ms, job.ended_ms)


async def test_a_retried_job_comes_back_after_its_delay_with_the_next_attempt(store, views, clock):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await store.retry(lease, 300, b'{"type":"Boom"}', "Boom")
    job = await views.get(key("a"))
    assert (JobState.scheduled, 1_000_300, 1, b'{"type":"Boom"}') == (
        job.state,
        job.due_ms,
        job.attempts,
        job.outcome,
    )
    clock.advance(ms=299)
    assert [] == await claim(store)
    clock.advance(ms=1)
    assert [2] == [lease.attempt for lease in await claim(store)]


async def test_a_snoozed_job_keeps_its_attempt(store, clock):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await store.retry(lease, 0, counted=False)
    assert [1] == [lease.attempt for lease in await claim(store)]


async def test_a_released_job_is_ready_at_once_and_uncounted(store):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await store.release(lease)
    [again] = await claim(store)
    assert (1, 0) == (again.attempt, again.crashes)
    assert again.token > lease.token


async def test_a_buried_job_is_dead_and_keeps_its_payload(store, views):
    await enqueue(store, "a", payload=b"[1]")
    [lease] = await claim(store)
    await store.bury(lease, b'{"type":"Bad"}', "Bad")
    job = await views.get(key("a"))
    assert (JobState.dead, b'{"type":"Bad"}', b"[1]") == (job.state, job.outcome, job.payload)


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release"])
async def test_a_stale_token_is_refused_whatever_it_wants(store, clock, verb):
    await enqueue(store, "a")
    [stale] = await claim(store)
    clock.advance(s=16)
    await store.recover(0)
    clock.advance(s=1)
    [fresh] = await claim(store)
    calls = {
        "ack": lambda: store.ack(stale),
        "retry": lambda: store.retry(stale, 0),
        "bury": lambda: store.bury(stale),
        "release": lambda: store.release(stale),
    }
    with pytest.raises(LeaseLost):
        await calls[verb]()
    assert [True] == await store.extend(0, [fresh])
    assert [False] == await store.extend(0, [stale])
    with pytest.raises(LeaseLost):
        await store.progress(stale, b"1")


async def test_finishing_a_job_that_is_gone_says_so(store, clock):
    await enqueue(store, "a", retain_s=0)
    [lease] = await claim(store)
    await store.ack(lease)
    clock.advance(s=61)
    await store.prune(0)
    with pytest.raises(JobNotFound):
        await store.ack(lease)


async def test_keep_returns_the_job_as_it_is_in_every_state(store):
    first = await enqueue(store, "a", delay_ms=1000, payload=b"1")
    again = await enqueue(store, "a", payload=b"2")
    assert ("kept", False, first.revision, first.due_ms) == (
        again.word,
        again.created,
        again.revision,
        again.due_ms,
    )
    await enqueue(store, "b")
    assert "kept" == (await enqueue(store, "b")).word
    [lease] = await claim(store)
    assert ("kept", JobState.running) == _two(await enqueue(store, "b"))
    await store.ack(lease)
    assert ("kept", JobState.succeeded) == _two(await enqueue(store, "b"))


def _two(placed):
    return placed.word, placed.state


async def test_raise_refuses_a_taken_id_in_every_state(store):
    await enqueue(store, "a")
    for _ in range(3):
        with pytest.raises(JobExists):
            await enqueue(store, "a", on_conflict="raise")
        for lease in await claim(store):
            await store.ack(lease)


async def test_replace_gives_a_waiting_job_a_new_payload_and_time(store, views):
    first = await enqueue(store, "a", delay_ms=1000, payload=b"1")
    again = await enqueue(store, "a", delay_ms=2000, payload=b"2", on_conflict="replace")
    assert ("replaced", 1_002_000) == (again.word, again.due_ms)
    assert again.revision > first.revision
    assert b"2" == (await views.get(key("a"))).payload


async def test_replacing_a_ready_job_delivers_only_the_new_one(store, clock):
    await enqueue(store, "a", payload=b"1")
    await enqueue(store, "a", payload=b"2", delay_ms=100, on_conflict="replace")
    assert [] == await claim(store)
    clock.advance(ms=100)
    assert [b"2"] == [lease.payload for lease in await claim(store)]


async def test_replacing_a_running_job_voids_its_token(store, clock):
    await enqueue(store, "a", payload=b"1")
    [old] = await claim(store)
    await enqueue(store, "a", payload=b"2", on_conflict="replace")
    with pytest.raises(LeaseLost):
        await store.ack(old)
    [new] = await claim(store)
    assert b"2" == new.payload
    await store.ack(new)


async def test_replacing_by_the_identical_job_keeps_it(store):
    first = await enqueue(store, "a", due_ms=2_000_000, payload=b"1", ttr_ms=5)
    again = await enqueue(store, "a", due_ms=2_000_000, payload=b"1", ttr_ms=5, on_conflict="replace")
    assert ("kept", first.revision) == (again.word, again.revision)
    other = await enqueue(store, "a", due_ms=2_000_000, payload=b"1", ttr_ms=6, on_conflict="replace")
    assert "replaced" == other.word


async def test_replacing_an_ended_job_runs_it_again(store, views):
    await enqueue(store, "a", payload=b"1")
    [lease] = await claim(store)
    await store.ack(lease, b'"old"')
    await enqueue(store, "a", payload=b"2", on_conflict="replace")
    job = await views.get(key("a"))
    assert (JobState.ready, 0, b"", None) == (job.state, job.attempts, job.outcome, job.lateness_ms)


async def test_reschedule_moves_a_scheduled_or_ready_job(store, clock):
    first = await enqueue(store, "a", delay_ms=1000)
    moved = await store.reschedule(key("a"), delay_ms=50)
    assert ("rescheduled", 1_000_050, JobState.scheduled) == (moved.word, moved.due_ms, moved.state)
    assert moved.revision > first.revision
    await enqueue(store, "b")
    await store.reschedule(key("b"), due_ms=1_000_100)
    assert [] == await claim(store)
    clock.advance(ms=100)
    assert ["a", "b"] == [lease.key.id for lease in await claim(store)]


async def test_what_is_held_waits_at_the_revision_that_it_has_until_it_is_let_go(store, clock):
    placed = {id_: await enqueue(store, id_, delay_ms=delay) for id_, delay in (("ready", 0), ("soon", 10))}
    held = [await store.hold(key(id_), least_ms=1000) for id_ in placed]
    assert [(True, placed[id_].revision, placed[id_].due_ms, placed[id_].state) for id_ in placed] == [
        each[1:] for each in held
    ]
    clock.advance(ms=999)
    await store.promote(0)
    assert [] == await claim(store)
    for each in held:
        await store.let_go(each)
        await store.let_go(each)
    await store.promote(0)
    leases = {lease.key.id: lease for lease in await claim(store)}
    assert {id_: (each.revision, each.due_ms) for id_, each in placed.items()} == {
        id_: (lease.revision, lease.due_ms) for id_, lease in leases.items()
    }


async def test_who_holds_a_job_and_is_gone_makes_it_late_and_no_more(store, clock):
    await enqueue(store, "a")
    await store.hold(key("a"), least_ms=1000)
    clock.advance(ms=1000)
    await store.promote(0)
    assert ["a"] == [lease.key.id for lease in await claim(store)]


async def test_a_job_that_is_held_has_time_to_run_before_it_expires(store, clock):
    await enqueue(store, "a", expires_ms=clock.now_ms + 3000)
    await store.hold(key("a"), least_ms=60_000)
    clock.advance(ms=2000)
    await store.promote(0)
    assert ["a"] == [lease.key.id for lease in await claim(store)]


async def test_who_held_a_job_second_does_not_know_when_it_was_due(store, clock, views):
    placed = await enqueue(store, "a", delay_ms=10)
    first, second = [await store.hold(key("a"), least_ms=1000) for _ in range(2)]
    await store.let_go(first)
    await store.let_go(second)
    assert placed.due_ms == (await views.get(key("a"))).due_ms


async def test_only_what_would_start_meanwhile_is_held(store, clock, views):
    later = await enqueue(store, "later", delay_ms=1001)
    assert (await store.hold(key("later"), least_ms=1000)).waits
    assert later.due_ms == (await views.get(key("later"))).due_ms
    assert not (await store.hold(key("later"), least_ms=2000, revision=later.revision + 1)).waits
    assert await store.hold(key("none"), least_ms=1) is None
    await enqueue(store, "a")
    [lease] = await claim(store)
    assert (False, JobState.running) == (
        (held := await store.hold(key("a"), least_ms=1)).waits,
        held.state,
    )
    await store.ack(lease)
    assert JobState.succeeded is (await store.hold(key("a"), least_ms=1)).state
    assert JobState.succeeded is (await views.get(key("a"))).state


async def test_reschedule_refuses_what_runs_or_has_ended_and_a_revision_that_passed(store):
    placed = await enqueue(store, "a")
    with pytest.raises(Conflict):
        await store.reschedule(key("a"), delay_ms=1, revision=placed.revision + 1)
    [lease] = await claim(store)
    with pytest.raises(Conflict):
        await store.reschedule(key("a"), delay_ms=1)
    await store.ack(lease)
    with pytest.raises(Conflict):
        await store.reschedule(key("a"), delay_ms=1)
    with pytest.raises(JobNotFound):
        await store.reschedule(key("b"), delay_ms=1)


@pytest.mark.several_shards
async def test_cancel_ends_a_job_in_any_open_state(store, views):
    await enqueue(store, "a", delay_ms=1000)
    await enqueue(store, "b")
    await enqueue(store, "c", topic="slow")
    [running] = await claim(store, "slow")
    states = await store.cancel([key("a"), key("b"), key("c", "slow"), key("d")])
    assert [JobState.cancelled] * 3 + [None] == states
    assert [] == await claim(store)
    with pytest.raises(LeaseLost):
        await store.ack(running)
    assert (JobState.cancelled, 1_001_000) == (
        (await views.get(key("a"))).state,
        (await views.get(key("a"))).due_ms,
    )


@pytest.mark.several_shards
async def test_cancel_returns_the_state_of_an_ended_job(store):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await store.ack(lease)
    assert [JobState.succeeded] == await store.cancel([key("a")])


@pytest.mark.several_shards
async def test_requeue_runs_an_ended_job_again_with_its_counters_at_zero(store, views, clock):
    first = await enqueue(store, "a", payload=b"1", expires_ms=1_000_500)
    [lease] = await claim(store)
    await store.bury(lease, b'{"type":"Bad"}')
    clock.advance(s=1)
    [placed] = await store.requeue([key("a")])
    assert ("requeued", JobState.ready) == (placed.word, placed.state)
    assert placed.revision > first.revision
    job = await views.get(key("a"))
    assert (0, 0, b"") == (job.attempts, job.crashes, job.outcome)
    assert [b"1"] == [lease.payload for lease in await claim(store)]


async def test_a_requeued_job_without_its_old_deadline_is_the_same_as_one_that_never_had_one(store):
    await enqueue(store, "a", payload=b"1", expires_ms=1_000_500)
    await store.cancel([key("a")])
    await store.requeue([key("a")])
    assert "kept" == (await enqueue(store, "a", payload=b"1", on_conflict="replace")).word


@pytest.mark.several_shards
async def test_requeue_of_an_open_or_unknown_job_is_refused_for_that_job_only(store):
    await enqueue(store, "a")
    await enqueue(store, "b")
    [lease] = [each for each in await claim(store) if each.key.id == "a"]
    await store.ack(lease)
    answers = await store.requeue([key("a"), key("b"), key("c")])
    assert ["Placed", "Conflict", "JobNotFound"] == [type(answer).__name__ for answer in answers]


async def test_an_expired_job_is_cancelled_instead_of_promoted_or_claimed(store, views, clock):
    await enqueue(store, "late", delay_ms=100, expires_ms=1_000_150)
    await enqueue(store, "ready", expires_ms=1_000_150)
    clock.advance(ms=200)
    assert [] == await claim(store)
    for id_ in ("late", "ready"):
        job = await views.get(key(id_))
        assert (JobState.cancelled, b'{"type":"expired"}') == (job.state, job.outcome)


@pytest.mark.several_shards
async def test_ids_are_unique_within_a_topic_not_across(store):
    await enqueue(store, "a", topic="one", payload=b"1")
    await enqueue(store, "a", topic="two", payload=b"2")
    assert {b"1", b"2"} == {lease.payload for lease in await claim(store, "one", "two")}


async def test_a_long_body_stands_apart_and_travels_whole(store, views):
    payload = b'"' + b"x" * 50_000 + b'"'
    await enqueue(store, "a", payload=payload, envelope=b'{"max_attempts":7}')
    [lease] = await claim(store)
    assert (payload, b'{"max_attempts":7}') == (lease.payload, lease.envelope)
    await store.ack(lease)
    job = await views.get(key("a"))
    assert (payload, 7) == (job.payload, job.envelope.max_attempts)
    replaced = await enqueue(store, "a", payload=b"1", on_conflict="replace")
    assert "replaced" == replaced.word
    assert [b"1"] == [lease.payload for lease in await claim(store)]


@pytest.mark.several_shards
async def test_enqueue_many_answers_for_each_job_in_order(store):
    await enqueue(store, "b")
    answers = await store.enqueue_many(
        [
            order("a"),
            order("b", on_conflict="raise"),
            order("c"),
            order("a"),
            order("c", on_conflict="replace"),
        ]
    )
    words = [getattr(answer, "word", type(answer).__name__) for answer in answers]
    assert ["created", "JobExists", "created", "kept"] == words[:4]


async def test_progress_shows_while_the_job_runs_and_goes_with_its_end(store, views):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await store.progress(lease, b"0.5")
    assert b"0.5" == (await views.get(key("a"))).progress
    await store.ack(lease)
    assert b"" == (await views.get(key("a"))).progress


async def test_lanes_come_by_chance_high_before_low_more_often_than_not(store, chance):
    firsts = Counter()
    for at in range(60):
        for lane in (Lane.low, Lane.normal, Lane.high):
            await enqueue(store, f"{lane.name}{at}", lane=lane)
        taken = [lease.lane for lease in await claim(store)]
        assert {Lane.high, Lane.normal, Lane.low} == set(taken)
        firsts[taken[0]] += 1
    assert firsts[Lane.high] > firsts[Lane.normal] > firsts[Lane.low] > 0


async def test_topics_take_turns_by_chance(store, chance):
    for id_ in range(30):
        for topic in ("a", "b", "c"):
            await enqueue(store, str(id_), topic=topic)
    firsts = Counter([(await claim(store, "a", "b", "c", limit=1))[0].key.topic for _ in range(30)])
    assert {"a": True, "b": True, "c": True} == {topic: number >= 4 for topic, number in firsts.items()}
