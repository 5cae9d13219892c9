"""
Events: what happens to jobs, as it happens.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import EventsLost, JobState, UsageError
from tests.contract.faces import NO_RECORD, RECORDS
from tests.contract.handlers import add, fail
from tests.contract.kit import SOON_S, listed, new, reaches


def verbs_of(events, id_):
    return [event.verb.value for event in events if event.id == id_]


async def test_what_is_there_is_told_at_once(queue):
    assert [] == await listed(queue.events(since="start", wait=0))
    await queue.enqueue_many([new("mail", n, id=str(n), delay=60) for n in range(12)])
    found = await listed(queue.events(since="start", wait=0))
    assert sorted(str(n) for n in range(12)) == sorted(event.id for event in found)
    assert {("mail", JobState.scheduled, 0)} == {(each.topic, each.state, each.attempt) for each in found}


async def test_a_life_is_told_in_its_order(queue, working):
    async with working():
        good, bad = await queue.enqueue(add.job(1), id="good"), await queue.enqueue(fail.job(), id="bad")
        await good.result(timeout=SOON_S)
        await reaches(bad, JobState.dead)
        found = await listed(queue.events(since="start", wait=0))
    # How it begins is told by the tests below.
    assert ["claimed", "acked"] == verbs_of(found, "good")[1:]
    assert ["claimed", "buried"] == verbs_of(found, "bad")[1:]
    [acked] = [event for event in found if event.verb.value == "acked"]
    assert (JobState.succeeded, 1) == (acked.state, acked.attempt)
    assert acked.run_ms >= 0


@pytest.mark.differs(
    *RECORDS, reason="the record makes the promise; the queue takes over its row: `hydrated`"
)
async def test_a_life_begins_when_a_job_is_enqueued(queue):
    await queue.enqueue_many([new("mail", n, id=str(n)) for n in range(6)])
    assert ["enqueued"] * 6 == await begins(queue)


@pytest.mark.differs(*NO_RECORD, reason="there is no record: it is `enqueued`")
async def test_a_life_begins_when_the_queue_takes_over_the_row_of_a_job(queue):
    await queue.enqueue_many([new("mail", n, id=str(n)) for n in range(6)])
    assert ["hydrated"] * 6 == await begins(queue)


async def begins(queue):
    """
    What is told first of each job.
    """
    found = await listed(queue.events(since="start", wait=0))
    return [verbs_of(found, id_)[0] for id_ in sorted({event.id for event in found})]


async def test_who_follows_is_told_while_it_happens(queue):
    async with queue.events(wait=SOON_S) as events:
        sent = [await queue.enqueue("mail", id=str(n), delay=60) for n in range(6)]
        for each in sent:
            await each.cancel()
        told = []
        async for event in events:
            told.append(event)
            if sum(each.verb.value == "cancelled" for each in told) == len(sent):
                break
    assert {each.id for each in sent} == {event.id for event in told}


async def test_a_follower_begins_now(queue):
    await queue.enqueue("mail", id="before", delay=60)
    async with queue.events(wait=SOON_S) as events:
        await queue.enqueue("mail", id="after", delay=60)
        assert "after" == (await anext(aiter(events))).id


async def test_only_the_topics_and_verbs_that_were_named_are_told(queue):
    for topic in ("mail", "sms"):
        await (await queue.enqueue(topic, id=topic, delay=60)).cancel()
    mail = await listed(queue.events(topics="mail", since="start", wait=0))
    assert {"mail"} == {event.topic for event in mail}
    cancelled = await listed(queue.events(topics=["mail", "sms"], verbs="cancelled", since="start", wait=0))
    assert [("mail", "cancelled"), ("sms", "cancelled")] == sorted(
        (event.topic, event.verb.value) for event in cancelled
    )


async def test_another_follower_goes_on_where_one_ended(queue):
    await queue.enqueue_many([new("mail", n, id=f"a{n}", delay=60) for n in range(6)])
    first = queue.events(since="start", wait=0)
    assert 6 == len(await listed(first))
    await queue.enqueue_many([new("mail", n, id=f"b{n}", delay=60) for n in range(6)])
    rest = await listed(queue.events(since=first.offset, wait=0))
    assert [f"b{n}" for n in range(6)] == sorted(event.id for event in rest)


async def test_a_wait_ends_where_nothing_happens(queue):
    async with asyncio.timeout(SOON_S):
        assert [] == await listed(queue.events(wait=0.05))


async def test_events_that_are_gone_are_told_to_whoever_did_not_read_them(queue, beside):
    for number in range(20):
        await queue.enqueue("mail", id=str(number), delay=60)
    store = await beside.store()
    for keys in store.keys:
        await store.link.call("XTRIM", keys.fixed["events"], "MAXLEN", "=", 1)
    events, lost, told = queue.events(since="start", wait=0), [], []
    while True:
        try:
            told += await listed(events)
            break
        except EventsLost as gap:
            lost.append((gap.shard, gap.since, gap.until is not None))
    # The same follower goes on behind the gap.
    assert [(shard, 1, True) for shard in range(store.shards)] == sorted(lost)
    assert told


async def test_wrong_questions_are_refused(queue):
    topics = {"topics": "no topic"}, {"topics": 1}
    for wrong in (*topics, {"verbs": "exploded"}, {"since": "nonsense"}, {"wait": "soon"}):
        with pytest.raises(UsageError):
            await listed(queue.events(**wrong))
