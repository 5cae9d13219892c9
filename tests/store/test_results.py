"""
A result is kept for the time that was asked for, a minute at least, and with `retain=0` for who waits.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.codec import Envelope, encode_envelope
from duly.errors import JobNotFound
from duly.job import JobState
from duly.store import Keeping
from tests.store.kit import claim, enqueue, key, order

MINUTE_MS = 60_000
LONG = b'"%s"' % (b"x" * 5_000)  #: is kept apart from the record
CONTEXT = encode_envelope(Envelope(context={"by": "ada"}))


async def end(store, id_="a", result=b'"done"'):
    """
    Run the only job that is ready to its end.
    """
    [lease] = await claim(store)
    assert id_ == lease.key.id
    await store.ack(lease, result)


async def watch(store, id_="a"):
    """
    What a waiter is told, who marks a job that has not ended.
    """
    keys = store.keys[0]
    names = [keys.fixed["jobs"], keys.fixed["outcomes"], keys.due("mail")]
    return await store.link.run("watch", names, [key(id_).member])


# -- the time that was asked for --------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"1", LONG], ids=["short", "long"])
@pytest.mark.parametrize("retain_s", [1, 30, 59, 60])
async def test_less_than_a_minute_counts_as_a_minute(store, views, clock, look, retain_s, payload):
    await enqueue(store, "a", retain_s=retain_s, payload=payload)
    await end(store)
    clock.advance(ms=MINUTE_MS - 1)
    assert (0, False) == await store.prune(0)
    job = await views.get(key("a"))
    assert (JobState.succeeded, b'"done"', payload, False) == (
        job.state,
        job.outcome,
        job.payload,
        job.result_gone,
    )
    look()
    clock.advance(ms=1)
    assert (1, False) == await store.prune(0)
    assert {} == look().outcomes


async def test_a_short_time_for_all_jobs_counts_as_a_minute_too(store, views, clock):
    store.keeping = Keeping(done_ms=500, dead_ms=0)
    for id_ in ("a", "b", "c"):
        await enqueue(store, id_)
    acked, buried, cancelled = await claim(store)
    await store.ack(acked, b'"done"')
    await store.bury(buried, b'{"type":"Boom"}')
    await store.cancel([cancelled.key])
    clock.advance(ms=MINUTE_MS - 1)
    assert (0, False) == await store.prune(0)
    found = await views.get_many([acked.key, buried.key, cancelled.key])
    assert [b'"done"', b'{"type":"Boom"}', b'{"type":"cancelled"}'] == [job.outcome for job in found]
    assert ["requeued"] == [placed.word for placed in await store.requeue([acked.key])]
    clock.advance(ms=1)
    assert (2, False) == await store.prune(0)


# -- with retain=0 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["retain", "keeping"])
async def test_a_result_that_nobody_waits_for_is_dropped_and_that_is_said(store, views, look, by):
    if by == "keeping":
        store.keeping = Keeping(done_ms=0)
    await enqueue(store, "a", retain_s=0 if by == "retain" else None)
    await end(store)
    job = await views.get(key("a"))
    assert (JobState.succeeded, b"", True) == (job.state, job.outcome, job.result_gone)
    assert [JobState.succeeded, job.revision, b"", 1] == await watch(store)
    assert {} == look().outcomes


async def test_a_handler_that_returned_nothing_has_lost_nothing(store, views):
    await enqueue(store, "a", retain_s=0)
    await end(store, result=b"")
    job = await views.get(key("a"))
    assert (JobState.succeeded, b"", False) == (job.state, job.outcome, job.result_gone)
    assert [JobState.succeeded, job.revision, b"", 0] == await watch(store)


async def test_jobs_that_end_together_lose_each_its_own_result(store, views):
    for id_ in "abcd":
        await enqueue(store, id_, retain_s=0)
    await watch(store, "b")
    results = {"a": b"1", "b": b"2", "c": b"", "d": b"4"}
    await asyncio.gather(*(store.ack(lease, results[lease.key.id]) for lease in await claim(store)))
    found = await views.get_many([key(id_) for id_ in "abcd"])
    assert [(b"", True), (b"2", False), (b"", False), (b"", True)] == [
        (job.outcome, job.result_gone) for job in found
    ]


@pytest.mark.parametrize("payload", [b"1", LONG], ids=["short", "long"])
@pytest.mark.parametrize("when", ["scheduled", "ready", "running"])
async def test_a_result_that_somebody_waits_for_is_kept_for_a_minute(
    store, views, clock, look, when, payload
):
    await enqueue(store, "a", retain_s=0, payload=payload, delay_ms=50 if when == "scheduled" else None)
    if when != "running":
        assert [JobState[when]] == (await watch(store))[:1]
    clock.advance(ms=50)
    [lease] = await claim(store)
    if when == "running":
        await watch(store)
    await store.ack(lease, b'"done"')
    clock.advance(ms=MINUTE_MS - 1)
    assert (0, False) == await store.prune(0)
    assert [JobState.succeeded, lease.revision, b'"done"', 0] == await watch(store)
    assert b"" == (await views.get(key("a"))).payload
    look()
    clock.advance(ms=1)
    assert (1, False) == await store.prune(0)
    assert {} == look().outcomes


async def test_who_waits_is_not_forgotten_by_what_becomes_of_the_job(store, views, clock):
    await enqueue(store, "a", retain_s=0, delay_ms=1_000)
    await watch(store)
    await store.reschedule(key("a"), delay_ms=2_000)
    await enqueue(store, "a", retain_s=0, payload=b"2", on_conflict="replace")
    [lease] = await claim(store)
    await store.retry(lease, 1, b'{"type":"Boom"}')
    clock.advance(ms=1)
    await claim(store)
    clock.advance(s=60)
    await store.recover(0)
    await end(store)
    assert b'"done"' == (await views.get(key("a"))).outcome


async def test_a_waiter_is_told_why_a_job_that_is_not_kept_was_cancelled(store):
    for id_ in ("a", "b"):
        await enqueue(store, id_, retain_s=0)
    await watch(store, "a")
    await store.cancel([key("a"), key("b")])
    assert b'{"type":"cancelled"}' == (await watch(store, "a"))[2]
    assert [b"", 0] == (await watch(store, "b"))[2:]


async def test_a_sender_that_waits_says_so_with_the_job_itself(store, views, clock, look):
    """
    To ask for the result afterwards may be too late.
    """
    sent = [
        order("now", retain_s=0, awaited=True),
        order("later", retain_s=0, awaited=True, delay_ms=50),
        order("other", retain_s=0, payload=LONG),
        order("long", retain_s=0, payload=LONG, awaited=True, envelope=CONTEXT),
    ]
    assert "created" == (await store.enqueue(sent[0])).word
    assert ["created"] * 3 == [placed.word for placed in await store.enqueue_many(sent[1:])]
    look()
    clock.advance(ms=49)
    leases = await claim(store)
    assert 3 == len(leases)
    clock.advance(ms=1)
    leases += await claim(store)
    for lease in leases:
        await store.ack(lease, b'"done"')
    kept = {job.id: job.outcome for job in await views.get_many([each.key for each in sent])}
    assert {"now": b'"done"', "later": b'"done"', "other": b"", "long": b'"done"'} == kept
    look()


async def test_a_job_that_is_replaced_by_one_who_waits_keeps_its_result(store, views, look):
    await enqueue(store, "a", retain_s=0)
    placed = await enqueue(store, "a", retain_s=0, payload=b"2", on_conflict="replace", awaited=True)
    assert "replaced" == placed.word
    look()
    await end(store)
    assert b'"done"' == (await views.get(key("a"))).outcome


async def test_the_same_call_of_one_who_waits_is_the_same_job(store):
    first = await enqueue(store, "a", retain_s=0, awaited=True)
    assert ("kept", first.revision) == (await _again(store, "keep"))[:2]
    assert ("kept", first.revision) == (await _again(store, "replace"))[:2]


async def _again(store, on_conflict):
    placed = await enqueue(store, "a", retain_s=0, awaited=True, on_conflict=on_conflict)
    return placed.word, placed.revision


# -- what is left of a job --------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"1", LONG], ids=["short", "long"])
@pytest.mark.parametrize("how", ["ack", "cancel", "expire"])
async def test_a_stub_keeps_its_envelope_and_no_payload(store, views, clock, look, how, payload):
    expires_ms = clock.now_ms + 5 if how == "expire" else 0
    await enqueue(store, "a", retain_s=0, payload=payload, envelope=CONTEXT, expires_ms=expires_ms)
    if how == "ack":
        await end(store)
    elif how == "cancel":
        await store.cancel([key("a")])
    else:
        clock.advance(ms=10)
        assert [] == await claim(store)
    job = await views.get(key("a"))
    assert (b"", {"by": "ada"}) == (job.payload, job.envelope.context)
    assert {} == look().bodies
    [answer] = await store.requeue([key("a")])
    assert isinstance(answer, JobNotFound)
    clock.advance(ms=MINUTE_MS)
    assert (1, False) == await store.prune(0)
    look()


@pytest.mark.parametrize("payload", [b"1", LONG], ids=["short", "long"])
async def test_a_stub_with_a_reply_keeps_its_envelope_too(store, views, look, payload):
    envelope = encode_envelope(Envelope(reply_to="inbox", context={"by": "ada"}))
    await enqueue(store, "a", retain_s=0, payload=payload, envelope=envelope)
    await end(store)
    assert {"by": "ada"} == (await views.get(key("a"))).envelope.context
    assert [b'"done"'] == [outcome for *_, outcome in look().replies.values()]


async def test_a_stub_makes_way_for_another_revision(store, views, look):
    await enqueue(store, "a", retain_s=0, payload=LONG, envelope=CONTEXT)
    await end(store)
    await enqueue(store, "a", retain_s=0, payload=LONG, envelope=CONTEXT, on_conflict="replace")
    look()
    job = await views.get(key("a"))
    assert (JobState.ready, LONG, False) == (job.state, job.payload, job.result_gone)
    await end(store, result=b"")
    assert not (await views.get(key("a"))).result_gone


async def test_with_a_record_results_stay_until_its_rows_have_them(store, views, clock):
    """
    A worker may be killed between the end of a job and its row.
    """
    await store.approve("record", 1)
    for id_ in ("a", "b"):
        await enqueue(store, id_, retain_s=0)
    acked, cancelled = await claim(store)
    await store.ack(acked, b'"done"')
    await store.cancel([cancelled.key])
    found = await views.get_many([acked.key, cancelled.key])
    assert [b'"done"', b'{"type":"cancelled"}'] == [job.outcome for job in found]
    assert not found[0].result_gone


async def test_an_ended_job_that_is_indexed_anew_is_kept_for_a_minute(store, raw, clock):
    store.keeping = Keeping(done_ms=0)
    await enqueue(store, "a")
    await end(store)
    raw.delete(store.keys[0].fixed["done"])
    assert 1 == (await store.audit(0, ["mail/a"]))[0]
    clock.advance(ms=MINUTE_MS - 1)
    assert (0, False) == await store.prune(0)
    clock.advance(ms=1)
    assert (1, False) == await store.prune(0)
