"""
Replies: what became of jobs, told to whoever reads the queue that they name.
"""

from __future__ import annotations

import pydantic
import pytest

from duly import Fixed, JobState, UsageError
from duly.documents import ended_fields_of
from duly.handlers import Handlers
from tests.contract.handlers import Parcel, add, bury, weigh
from tests.contract.kit import FAR, SOON_S, listed, new


class Load(pydantic.BaseModel):
    """
    What another app reads the results of `weigh` as.
    """

    name: str
    grams: int


async def taken(queue, name, count, wait=SOON_S):
    """
    Take and ack so many replies; an empty queue ends the wait.
    """
    found = []
    async for reply in queue.replies(name, wait=wait):
        found.append(reply)
        await reply.ack()
        if len(found) == count:
            break
    return found


async def test_each_end_of_a_job_is_told(queue, working):
    await queue.enqueue(add.job(2, 3), id="good", reply_to="answers")
    await queue.enqueue(bury.job("no such user"), id="bad", reply_to="answers")
    cancelled = await queue.enqueue(add.job(1), id="gone", delay=60, reply_to="answers")
    await cancelled.cancel()
    async with working():
        told = {reply.job.id: reply for reply in await taken(queue, "answers", 3)}
    assert {"good", "bad", "gone"} == set(told)
    assert (JobState.succeeded, 5, None) == (told["good"].state, told["good"].result, told["good"].error)
    assert (JobState.dead, None) == (told["bad"].state, told["bad"].result)
    assert "no such user" == told["bad"].error["message"]
    assert (JobState.cancelled, None) == (told["gone"].state, told["gone"].result)
    assert "answers" == told["good"].name


async def test_a_handler_of_another_app_reads_the_result_of_a_reply(queue, working):
    @Handlers().handler("weigh")
    def weighed(parcel: Parcel) -> Load: ...

    job = weighed.job(Parcel("book", 700))
    await queue.enqueue(job, id="done", reply_to="answers")
    gone = await queue.enqueue(job, id="gone", delay=60, reply_to="answers")
    await gone.cancel()
    async with working():
        told = {reply.job.id: reply for reply in await taken(queue, "answers", 2)}
    assert Load(name="book", grams=701) == told["done"].result_of(weighed)
    assert Parcel("book", 701) == told["done"].result_of(weigh) == told["done"].result
    assert None is told["gone"].result_of(weighed)
    with pytest.raises(UsageError, match=r"^a reply of topic weigh has no result of <AsyncHandler add: .*>$"):
        told["done"].result_of(add)


async def test_a_reply_tells_of_its_job_what_the_job_tells_itself(queue, working):
    every = {"ttr": 1.5, "expires": FAR, "backoff": Fixed(5), "retain": 90, "context": {"tenant": "acme"}}
    sent = {
        "plain": await queue.enqueue(add.job(1), id="plain", reply_to="answers"),
        "full": await queue.enqueue(add.job(1), id="full", reply_to="answers", max_attempts=7, **every),
        "again": await queue.enqueue(add.job(1), id="again", reply_to="answers", delay=3600),
        "called": await queue.enqueue(
            "mail", id="called", delay=60, reply_to="answers", callback="https://example.com/hook", **every
        ),
    }
    await sent["again"].reschedule(delay=0)
    await sent["called"].cancel()
    async with working():
        told = {reply.job.id: reply.job for reply in await taken(queue, "answers", len(sent))}
    assert sent.keys() == told.keys()
    for id_, handle in sent.items():
        assert ended_fields_of(await handle.get()) == ended_fields_of(told[id_])
    assert (7, "https://example.com/hook") == (told["full"].max_attempts, told["called"].callback)


async def test_a_reply_has_the_type_that_the_handler_names(queue, working):
    await queue.enqueue(weigh.job(Parcel("book", 700)), reply_to="answers")
    async with working():
        [reply] = await taken(queue, "answers", 1)
    assert Parcel("book", 701) == reply.result


async def test_a_reply_comes_while_somebody_waits_for_it(queue, working):
    async with working():
        await queue.enqueue(add.job(1), delay=0.3, reply_to="answers")
        [reply] = await taken(queue, "answers", 1)
    assert 1 == reply.result


async def test_without_a_wait_there_is_what_is_there(queue):
    sent = await queue.enqueue("mail", delay=60, reply_to="answers")
    assert [] == await listed(queue.replies("answers", wait=0))
    await sent.cancel()
    assert [sent.id] == [reply.job.id for reply in await taken(queue, "answers", 1, wait=0)]
    assert [] == await listed(queue.replies("answers", wait=0))


async def test_an_acked_reply_does_not_come_again(queue):
    sent = await queue.enqueue("mail", delay=60, reply_to="answers")
    await sent.cancel()
    [reply] = await taken(queue, "answers", 1)
    await reply.ack()
    assert [] == await listed(queue.replies("answers", wait=0))


async def test_a_reply_that_was_not_acked_comes_again(queue, beside):
    sent = await queue.enqueue("mail", delay=60, reply_to="answers")
    await sent.cancel()
    async for reply in queue.replies("answers", wait=SOON_S):
        first = reply
        break  # as a reader that is killed does
    assert [] == await listed(queue.replies("answers", wait=0))
    store = await beside.store()
    for keys in store.keys:  # the time that it was kept for this reader is over
        leases = keys.fixed["reply_leases"]
        for line in await store.link.call("ZRANGE", leases, 0, -1):
            await store.link.call("ZADD", leases, "XX", 1, line)
    [again] = await taken(queue, "answers", 1)
    assert (sent.id, first.id) == (again.job.id, again.id)
    assert [] == await listed(queue.replies("answers", wait=0))


async def test_asking_for_the_next_acks_the_one_before(queue):
    for number in range(3):
        await (await queue.enqueue("mail", number, delay=60, reply_to="answers")).cancel()
    assert 3 == len(await listed(queue.replies("answers", wait=0)))
    assert [] == await listed(queue.replies("answers", wait=0))


async def test_replies_of_many_jobs_all_come(queue, working):
    await queue.enqueue_many([add.job(number).options(reply_to="answers") for number in range(40)])
    async with working():
        found = await taken(queue, "answers", 40)
    assert list(range(40)) == sorted(reply.result for reply in found)


async def test_each_queue_has_its_own(queue):
    for name in ("one", "two"):
        await (await queue.enqueue("mail", id=name, delay=60, reply_to=name)).cancel()
    await (await queue.enqueue("mail", id="none", delay=60)).cancel()
    assert ["two"] == [reply.job.id for reply in await listed(queue.replies("two", wait=0))]
    assert ["one"] == [reply.job.id for reply in await listed(queue.replies("one", wait=0))]


async def test_a_job_that_is_run_again_replies_again(queue, working):
    sent = await queue.enqueue(add.job(1), reply_to="answers")
    async with working():
        [first] = await taken(queue, "answers", 1)
        await sent.requeue()
        [second] = await taken(queue, "answers", 1)
    assert first.job.revision < second.job.revision
    assert first.id != second.id


async def test_who_replaces_a_job_decides_who_is_told(queue):
    await queue.enqueue("mail", id="a", delay=60, reply_to="old")
    replaced = await queue.enqueue("mail", id="a", delay=60, reply_to="new", on_conflict="replace")
    await replaced.cancel()
    assert [] == await listed(queue.replies("old", wait=0))
    assert ["a"] == [reply.job.id for reply in await listed(queue.replies("new", wait=0))]


async def test_a_job_of_the_far_future_that_is_cancelled_replies_too(queue):
    [sent] = await queue.enqueue_many([new("mail", id="a", due_at=FAR, reply_to="answers")])
    await sent.cancel()
    assert ["a"] == [reply.job.id for reply in await taken(queue, "answers", 1)]


async def test_a_queue_of_replies_needs_a_name(queue):
    with pytest.raises(UsageError, match="reply queue"):
        queue.replies("no name")
    with pytest.raises(UsageError):
        queue.replies("answers", wait="a while")
