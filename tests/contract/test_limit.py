"""
Limit: refuse jobs of a topic beyond so many that wait.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from duly import DulyError, JobState, QueueFull, UsageError
from tests.contract.handlers import add
from tests.contract.kit import FAR, SOON_S, listed, new

LIMIT = 6
MANY = 60  #: shards share a limit: so many jobs meet each of them more often than its share


async def fill(queue, topic="mail", **options):
    """
    Limit a topic and send it more than it takes; the handles of those that it took.
    """
    await queue.limit(topic, LIMIT)
    jobs = [new(topic, {"left": n}, id=str(n), **options) for n in range(MANY)]
    return [each for each in await queue.enqueue_many(jobs) if not isinstance(each, DulyError)]


async def waiting(queue, topic="mail"):
    """
    The ids of the jobs of a topic that wait.
    """
    views = await queue.views()
    states = (JobState.scheduled, JobState.ready)
    return sorted([job.id for state in states for job in await listed(views.each(state, topic))])


async def test_jobs_beyond_the_limit_are_refused_and_not_stored(queue):
    await queue.limit("mail", LIMIT)
    taken = []
    for number in range(MANY):
        with suppress(QueueFull):
            taken.append(await queue.enqueue("mail", id=str(number), delay=60))
    assert LIMIT == len(taken)
    assert sorted(each.id for each in taken) == await waiting(queue)
    with pytest.raises(QueueFull, match="mail"):
        await queue.enqueue("mail", id=str(MANY), delay=60)


async def test_many_in_one_call_are_refused_one_by_one(queue):
    await queue.limit("mail", LIMIT)
    outcomes = await queue.enqueue_many([new("mail", n, id=str(n), delay=60) for n in range(MANY)])
    assert MANY - LIMIT == sum(isinstance(each, QueueFull) for each in outcomes)
    taken = [each for each in outcomes if not isinstance(each, QueueFull)]
    assert [True] * LIMIT == [each.created for each in taken]
    assert sorted(each.id for each in taken) == await waiting(queue)


async def test_senders_at_once_pass_no_limit(queue):
    await queue.limit("mail", LIMIT)
    jobs = [new("mail", n, id=str(n), delay=60) for n in range(MANY)]
    outcomes = await asyncio.gather(*map(queue.enqueue, jobs), return_exceptions=True)
    assert MANY - LIMIT == sum(isinstance(each, QueueFull) for each in outcomes)
    assert LIMIT == len(await waiting(queue))


async def test_jobs_of_the_far_future_count_too(queue):
    assert LIMIT == len(await fill(queue, due_at=FAR))
    assert LIMIT == len(await waiting(queue))


async def test_another_topic_takes_jobs_as_ever(queue):
    await fill(queue, delay=60)
    assert (await queue.enqueue("sms", delay=60)).created


async def test_a_full_topic_keeps_and_replaces_the_jobs_that_wait(queue):
    for sent in await fill(queue, delay=60):
        assert "kept" == (await queue.enqueue("mail", id=sent.id)).placed.word
        replaced = await queue.enqueue("mail", id=sent.id, delay=90, on_conflict="replace")
        assert "replaced" == replaced.placed.word
    assert LIMIT == len(await waiting(queue))


async def test_what_replaces_an_ended_job_needs_room(queue):
    await queue.limit("mail", LIMIT)
    ended = await queue.enqueue("mail", id="ended", delay=60)
    await ended.cancel()
    await fill(queue, delay=60)
    with pytest.raises(QueueFull):
        await queue.enqueue("mail", id="ended", delay=60, on_conflict="replace")
    assert JobState.cancelled is (await ended.get()).state
    assert LIMIT == len(await waiting(queue))


async def test_jobs_that_end_make_room(queue, working):
    sent = await fill(queue, "add")
    assert LIMIT == len(sent)
    async with working():
        for each in sent:
            await each.result(timeout=SOON_S)
        again = await queue.enqueue_many([add.job(1).options(id=f"more-{n}", delay=60) for n in range(MANY)])
    assert LIMIT == sum(not isinstance(each, QueueFull) for each in again)


async def test_a_cancelled_job_makes_room(queue):
    [first, *_] = await fill(queue, delay=60)
    await first.cancel()
    # The same id: in the shard that has room.
    assert (
        "replaced" == (await queue.enqueue("mail", id=first.id, delay=60, on_conflict="replace")).placed.word
    )


async def test_a_limit_that_is_lifted_or_raised_lets_jobs_in(queue):
    await fill(queue, delay=60)
    await queue.limit("mail", 2 * LIMIT)
    more = await queue.enqueue_many([new("mail", n, id=f"b{n}", delay=60) for n in range(MANY)])
    assert LIMIT == sum(not isinstance(each, QueueFull) for each in more)
    await queue.limit("mail", None)
    rest = await queue.enqueue_many([new("mail", n, id=f"c{n}", delay=60) for n in range(MANY)])
    assert [True] * MANY == [each.created for each in rest]


async def test_a_limit_below_what_waits_ends_nothing(queue):
    await fill(queue, delay=60)
    await queue.limit("mail", 1)
    with pytest.raises(QueueFull):
        await queue.enqueue("mail", id="more", delay=60)
    assert LIMIT == len(await waiting(queue))


async def test_a_limit_is_a_whole_number_of_one_or_more(queue):
    for wrong in (0, -1, 1.5, "10", True):
        with pytest.raises(UsageError):
            await queue.limit("mail", wrong)
    with pytest.raises(UsageError):
        await queue.limit("no topic", 1)
