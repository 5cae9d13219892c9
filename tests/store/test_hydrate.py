"""
Jobs come from the record with the revision of their row, and Redis keeps the highest that it has seen.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.codec import Envelope, encode_envelope
from duly.errors import LeaseLost, QueueFull, StoreUnavailable
from duly.feed import Feed
from duly.ids import new_request
from duly.job import JobState, Lane
from duly.store import Keeping, Promise, Store
from tests.shards import fixed_of, on_all, prune_all, shard_of
from tests.store.kit import claim, enqueue, key, order

pytestmark = pytest.mark.several_shards

NOW = 1_000_000
OPEN = (JobState.scheduled, JobState.ready, JobState.running)


def promise(id_: str, revision: int, due_ms: int = NOW + 1_000, **options) -> Promise:
    about = {name: options.pop(name) for name in ("attempts", "crashes", "cancelled") if name in options}
    return Promise(order(id_, due_ms=due_ms, **options), revision, new_request(), **about)


async def bring_to(store: Store, state: JobState, id_: str = "a", revision: int = 5):
    """
    A job of the record in the state, and the lease of its run if there was one.
    """
    due_ms = NOW + 1_000 if state is JobState.scheduled else NOW
    await store.hydrate([promise(id_, revision, due_ms)])
    if state <= JobState.ready:
        return None
    if state is JobState.cancelled:
        await store.cancel([key(id_)])
        return None
    [lease] = await claim(store)
    if state is JobState.succeeded:
        await store.ack(lease, b"1")
    elif state is JobState.dead:
        await store.bury(lease, b'{"type":"Boom"}')
    return lease


async def hydrate(store, *promises):
    """
    What stands in the store then, and what became of each promise.
    """
    return [each[:4] for each in await store.hydrate(promises)]


async def test_every_answer_tells_how_far_the_events_had_come(store):
    shard = shard_of(store, "mail", "a")
    [made] = await store.hydrate([promise("a", 5, NOW)])
    assert (shard, await Feed(store).last(shard)) == made.upto
    await store.hydrate([promise("a", 6, NOW)])
    [kept] = await store.hydrate([promise("a", 5, NOW)])
    assert (shard, await Feed(store).last(shard)) == kept.upto
    assert made.upto.offset.counter < kept.upto.offset.counter


async def test_rows_that_were_read_long_ago_are_refused(store, clock):
    """
    What became of them since may be forgotten.
    """
    read_ms = NOW
    clock.advance(ms=30_000)
    assert ["created"] == [each.word for each in await store.hydrate([promise("a", 5, NOW)], read_ms=read_ms)]
    clock.advance(ms=1)
    with pytest.raises(StoreUnavailable, match="read again"):
        await store.hydrate([promise("b", 5, NOW)], read_ms=read_ms)


async def test_a_promise_becomes_a_job_with_the_revision_of_its_row(store, views, look):
    long = b'"' + b"x" * 3_000 + b'"'
    promised = promise(
        "a",
        1_800_000_000_000_001,
        payload=long,
        lane=Lane.high,
        ttr_ms=4_000,
        expires_ms=NOW + 9_000,
        envelope=b'{"max_attempts":2}',
    )
    assert [(key("a"), "created", 1_800_000_000_000_001, JobState.scheduled)] == await hydrate(
        store, promised
    )
    job = await views.get(key("a"))
    assert (1_800_000_000_000_001, NOW + 1_000, long, "high") == (
        job.revision,
        job.due_ms,
        job.payload,
        job.priority,
    )
    assert (4_000, NOW + 9_000, 2) == (job.ttr_ms, job.expires_ms, job.envelope.max_attempts)
    look()


async def test_what_is_due_is_ready_at_once_and_late_since_it_was_promised(store, look):
    await store.hydrate([promise("a", 5, NOW - 400)])
    look()
    [lease] = await claim(store)
    assert (5, NOW - 400) == (lease.revision, lease.due_ms)


async def test_runs_and_crashes_of_the_past_are_counted_on(store, look):
    await store.hydrate([promise("a", 5, NOW, attempts=3), promise("b", 6, NOW, crashes=1)])
    look()
    leases = {lease.key.id: lease for lease in await claim(store)}
    assert (4, 0, Lane.normal) == (leases["a"].attempt, leases["a"].crashes, leases["a"].lane)
    assert (1, 1, Lane.suspect) == (leases["b"].attempt, leases["b"].crashes, leases["b"].lane)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("due_ms", [NOW, NOW + 2_000])
async def test_a_higher_revision_takes_the_place_of_whatever_is_there(store, views, look, state, due_ms):
    lease = await bring_to(store, state)
    expected = JobState.ready if due_ms == NOW else JobState.scheduled
    replaced = [(key("a"), "replaced", 6, expected)]
    assert replaced == await hydrate(store, promise("a", 6, due_ms, payload=b"2"))
    job = await views.get(key("a"))
    assert (6, due_ms, b"2", 0, b"") == (job.revision, job.due_ms, job.payload, job.attempts, job.outcome)
    if state is JobState.running:
        with pytest.raises(LeaseLost):
            await store.ack(lease)
    look()


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_equal_or_higher_revision_is_kept_in_whatever_state(store, look, state, behind, cancelled):
    await bring_to(store, state)
    before = look()
    kept = [(key("a"), "kept", 5, state)]
    assert kept == await hydrate(store, promise("a", 5 - behind, NOW, payload=b"2", cancelled=cancelled))
    assert before == look()


@pytest.mark.parametrize("state", OPEN)
async def test_a_cancelled_row_ends_a_job_of_a_lower_revision(store, views, look, state):
    lease = await bring_to(store, state)
    replaced = [(key("a"), "replaced", 6, JobState.cancelled)]
    assert replaced == await hydrate(store, promise("a", 6, cancelled=True))
    job = await views.get(key("a"))
    assert (JobState.cancelled, b"{}", b'{"type":"cancelled"}') == (job.state, job.payload, job.outcome)
    if lease:
        with pytest.raises(LeaseLost):
            await store.ack(lease)
    look()


@pytest.mark.parametrize("state", [JobState.succeeded, JobState.dead, JobState.cancelled])
async def test_a_cancelled_row_leaves_an_ended_job_as_it_ended(store, views, look, state):
    await bring_to(store, state)
    before = await views.get(key("a"))
    await store.hydrate([promise("a", 6, cancelled=True)])
    after = await views.get(key("a"))
    assert (6, state, before.outcome) == (after.revision, after.state, after.outcome)
    look()


async def test_who_comes_late_with_an_open_row_does_not_undo_its_cancellation(store, look):
    await store.hydrate([promise("a", 6, cancelled=True)])
    assert [(key("a"), "kept", 6, JobState.cancelled)] == await hydrate(store, promise("a", 5, NOW))
    assert [] == await claim(store)
    look()


async def test_a_running_job_is_told_to_stop_when_its_place_is_taken(store, link):
    lease = await bring_to(store, JobState.running)
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen() -> None:
        async for channel, message in link.listen(fixed_of(store, "mail", "a")["stop"]):
            if channel:
                heard.set_result(message)
                return
            listening.set()

    listening = asyncio.Event()
    task = asyncio.create_task(listen())
    await asyncio.wait_for(listening.wait(), 20)
    await store.hydrate([promise("a", 6)])
    assert f"mail/a {lease.token}".encode() == await asyncio.wait_for(heard, 20)
    await task


async def test_no_limit_refuses_what_was_promised(store):
    await store.limit("mail", 1)
    answers = await store.hydrate([promise(str(at), at + 1) for at in range(5)])
    assert ["created"] * 5 == [answer.word for answer in answers]
    with pytest.raises(QueueFull):
        await enqueue(store, "more")


async def test_a_body_kept_apart_goes_with_the_revision_that_had_it(store, raw, look):
    await store.hydrate([promise("a", 5, payload=b"1" * 2_000)])
    await store.hydrate([promise("a", 6, payload=b"1")])
    assert 0 == raw.hlen(fixed_of(store, "mail", "a")["bodies"])
    look()


async def test_any_number_is_hydrated_over_all_shards_in_their_order(link, namespace, clock):
    wide = Store(link, namespace=f"{namespace}wide", shards=3, now=clock)
    await wide.create()
    promises = [promise(str(at % 600), at + 1) for at in range(1_000)]
    answers = await wide.hydrate(promises)
    assert [(key(str(at % 600)), "replaced" if at >= 600 else "created", at + 1) for at in range(1_000)] == [
        answer[:3] for answer in answers
    ]


async def test_jobs_of_the_record_wake_timers_and_workers(store, raw):
    await store.hydrate([promise("a", 5, NOW), promise("b", 6)])
    assert 1 == sum(raw.llen(keys.wake("mail")) for keys in store.keys)
    told = [fields[1] for keys in store.keys for _, fields in raw.xrange(keys.fixed["timer"])]
    assert {b"", b"mail %d" % promise("b", 6).order.due_ms} == set(told)


async def test_at_the_memory_limit_the_relay_has_to_wait_and_forgetting_goes_on(store, raw):
    await store.hydrate([promise("a", 5)])
    raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable):
            await store.hydrate([promise("b", 6)])
        assert [True] == await store.forget([(key("a"), 5)])
    finally:
        raw.config_set("maxmemory", 0)


@pytest.mark.parametrize("state", JobState)
async def test_what_is_forgotten_leaves_nothing_behind_in_any_state(store, look, state):
    empty = look()
    lease = await bring_to(store, state)
    assert [True] == await store.forget([(key("a"), 5)])
    after = look()
    assert {} == after.jobs
    assert (empty.due, empty.leases, empty.done, empty.dead) == (
        after.due,
        after.leases,
        after.done,
        after.dead,
    )
    assert {} == after.bodies == after.outcomes
    assert [False] == await store.forget([(key("a"), 5)])
    if state is JobState.running:
        assert [False] == await store.extend(lease.shard, [lease])


async def test_a_later_revision_is_not_forgotten(store, look):
    await bring_to(store, JobState.scheduled, revision=6)
    await bring_to(store, JobState.scheduled, "b", revision=5)
    assert [False, True, False, True] == await store.forget(
        [(key("a"), 5), (key("b"), 4), (key("none"), 9), (key("b"), 5)]
    )
    assert ["mail/a"] == list(look().jobs)


async def test_prune_spares_what_the_record_has_not_confirmed(store, raw, clock, look):
    store.keeping = Keeping(done_ms=60_000, dead_ms=60_000)
    for id_ in ("a", "b", "c"):
        await enqueue(store, id_)
        [lease] = await claim(store)
        await (store.bury(lease) if id_ == "c" else store.ack(lease))
        clock.advance(s=10)
    clock.advance(s=3_600)
    await on_all(store, "meta", "HSET", "recorded_ms", NOW + 10_000)
    assert (1, False) == await prune_all(store)
    assert {"mail/b", "mail/c"} == look().jobs.keys()
    await on_all(store, "meta", "HSET", "recorded_ms", NOW + 20_001)
    assert (2, False) == await prune_all(store)
    look()


async def test_a_trace_of_a_cancelled_row_has_its_envelope_and_no_payload(store, views, look):
    envelope = encode_envelope(Envelope(context={"by": "ada"}))
    await store.hydrate([promise("a", 7, NOW, envelope=envelope, cancelled=True)])
    job = await views.get(key("a"))
    assert (JobState.cancelled, b"", {"by": "ada"}) == (job.state, job.payload, job.envelope.context)
    look()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_who_asked_for_a_reply_gets_it_from_a_job_of_the_record(store, cancelled):
    """
    Also from one that was cancelled before the queue ever heard of it.
    """
    envelope = b'{"reply_to":"answers"}'
    await store.hydrate([promise("a", 7, NOW, envelope=envelope, cancelled=cancelled)])
    for lease in await claim(store):
        await store.ack(lease, b'"done"')
    _, taken, _ = await store.reply_take(shard_of(store, "mail", "a"), "answers", 10, lease_ms=1_000)
    assert [b"mail/a"] == [member for _, member, _, _ in taken]


async def test_a_payload_that_looks_like_an_envelope_asks_for_no_reply(store):
    await store.hydrate([promise("a", 7, NOW, payload=b'{"reply_to":"answers"}')])
    [lease] = await claim(store)
    await store.ack(lease)
    shard = shard_of(store, "mail", "a")
    assert (0, [], False) == await store.reply_take(shard, "answers", 10, lease_ms=1_000)
