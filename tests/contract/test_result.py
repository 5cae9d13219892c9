"""
Result: wait until a job has ended, and have what its handler returned.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pydantic
import pytest

from duly import JobCancelled, JobFailed, JobNotFound, JobState, ResultGone
from duly.handlers import Handlers
from tests.contract.faces import NO_RECORD, RECORDS
from tests.contract.handlers import Parcel, Person, add, bury, fail, hire, hold, nothing, tell, weigh
from tests.contract.kit import FAR, SOON_S, are_awaited, listed, nested, reaches


class Load(pydantic.BaseModel):
    """
    What another app reads the results of `weigh` as.
    """

    name: str
    grams: int


async def test_the_result_is_what_the_handler_returned(queue, working):
    async with working():
        assert 5 == await (await queue.enqueue(add.job(2, 3))).result(timeout=SOON_S)
        told = await (await queue.enqueue(tell.job([None, {"ä": 1.5}]), id="a")).result(timeout=SOON_S)
    assert ([None, {"ä": 1.5}], "tell", "a", 1) == (told["said"], told["topic"], told["id"], told["attempt"])


async def test_a_result_of_500_levels_comes_back(queue, working):
    async with working():
        told = await (await queue.enqueue(tell.job(nested(499)))).result(timeout=SOON_S)
    assert nested(499) == told["said"]


async def test_the_result_has_the_type_that_the_handler_names(queue, working):
    sent = await queue.enqueue(weigh.job(Parcel("book", 700)))
    async with working():
        assert Parcel("book", 701) == await sent.result(timeout=SOON_S)


async def test_models_and_unions_arrive_and_come_back_as_they_are(queue, working):
    async with working():
        for since in (date(2030, 1, 2), datetime(2030, 1, 2, tzinfo=UTC)):
            job = hire.job(Person(name="Ada", Since=since), {1: "Bob"}, Path("/tmp/a"))
            sent = await queue.enqueue(job)
            person, names = await sent.result(timeout=SOON_S)
            assert (Person(name="Bob", Since=since), {0: "/tmp/a", 1: "Bob"}) == (person, names)
            assert type(since) is type(person.since)
            assert (person, names) == await queue.job(hire, sent.id).result(timeout=SOON_S)


async def test_a_handler_of_another_app_says_how_its_results_are_read(queue, working):
    @Handlers().handler("weigh")
    def weighed(parcel: Parcel) -> Load: ...

    job = weighed.job(Parcel("book", 700))
    handles = [
        await queue.enqueue(job),
        await queue.enqueue(job.options(priority="high", context={"tenant": "acme"})),
        *await queue.enqueue_many([job, job]),
        await queue.enqueue_awaited(job),
    ]
    handles += [queue.job(weighed, handle.id) for handle in handles]
    async with working():
        for handle in handles:
            assert Load(name="book", grams=701) == await handle.result(timeout=SOON_S)
        by_name = queue.job("weigh", handles[0].id)
        assert Parcel("book", 701) == await by_name.result(timeout=SOON_S)


async def test_a_job_that_has_ended_long_ago_has_its_result(queue, working):
    sent = await queue.enqueue(add.job(2, 3), id="a")
    async with working():
        await sent.result(timeout=SOON_S)
    assert 5 == await queue.job("add", "a").result(timeout=SOON_S)


@pytest.mark.parametrize("retain", [0.5, 30, 59])
async def test_a_result_is_there_however_short_it_is_kept(queue, working, retain):
    sent = await queue.enqueue(add.job(2, 3), retain=retain)
    async with working():
        await reaches(sent, JobState.succeeded)
        assert 5 == await sent.result(timeout=SOON_S)
    assert 5 == await queue.job(*sent.key).result(timeout=SOON_S)


async def test_who_waits_already_has_a_result_that_need_not_be_kept(queue, working, beside):
    sent = [await queue.enqueue(add.job(2, number), retain=0) for number in range(5)]
    sent.append(await queue.enqueue(nothing.job(), retain=0))
    waiting = [asyncio.create_task(each.result(timeout=SOON_S)) for each in sent]
    await are_awaited(beside, sent)
    async with working():
        assert [2, 3, 4, 5, 6, None] == await asyncio.gather(*waiting)


@pytest.mark.differs(*RECORDS, reason="the record has the result for as long as it has the row")
async def test_who_comes_later_is_told_that_a_result_was_not_kept(queue, working):
    gone, empty = await late(queue, working)
    assert "add/a has succeeded, but its result was not kept" in gone
    assert "None" == empty  # a job that returned nothing has lost nothing


@pytest.mark.differs(*NO_RECORD, reason="there is no record that keeps it: `ResultGone`")
async def test_who_comes_later_has_a_result_from_the_record(queue, working):
    assert ["5", "None"] == await late(queue, working)


async def late(queue, working):
    """
    What somebody is told who asks for the results 5 and None of jobs that have ended, sent with `retain=0`.
    """
    sent = [await queue.enqueue(job, id="a", retain=0) for job in (add.job(2, 3), nothing.job())]
    async with working():
        for each in sent:
            await reaches(each, JobState.succeeded)
    told = []
    for each in sent:
        try:
            told.append(str(await each.result(timeout=SOON_S)))
        except ResultGone as gone:
            told.append(str(gone))
    return told


async def test_a_dead_job_says_why(queue, working):
    failed, buried = await queue.enqueue(fail.job("boom")), await queue.enqueue(bury.job("no such user"))
    async with working():
        with pytest.raises(JobFailed, match="ValueError: boom"):
            await failed.result(timeout=SOON_S)
        with pytest.raises(JobFailed, match="no such user"):
            await buried.result(timeout=SOON_S)


async def test_a_cancelled_job_has_no_result(queue):
    for options in ({}, {"delay": 60}, {"due_at": FAR}):
        sent = await queue.enqueue("mail", **options)
        waiting = asyncio.create_task(sent.result(timeout=SOON_S))
        await sent.cancel()
        with pytest.raises(JobCancelled, match="cancelled"):
            await waiting


async def test_a_wait_ends_in_time_and_names_the_topic(queue):
    for options in ({}, {"due_at": FAR}):
        sent = await queue.enqueue("nobody.takes", **options)
        with pytest.raises(TimeoutError, match=r"nobody\.takes"):
            await sent.result(timeout=0.05)


async def test_nothing_is_waited_for_once_the_time_is_over(queue):
    sent = await queue.enqueue("nobody.takes")
    for over in (-1, timedelta(hours=-1)):
        with pytest.raises(TimeoutError, match=r"nobody\.takes"):
            await sent.result(timeout=over)
        assert [] == await listed(queue.replies("answers", wait=over))
        assert await listed(queue.events(since="start", wait=over))


async def test_all_who_wait_for_a_job_are_told(queue, working, flag):
    sent = await queue.enqueue(hold.job(str(flag)), id="a")
    waiting = [asyncio.create_task(queue.job("hold", "a").result(timeout=SOON_S)) for _ in range(10)]
    async with working():
        flag.touch()
        assert ["held"] * 10 == await asyncio.gather(*waiting)
    assert "held" == await sent.result(timeout=SOON_S)


async def test_who_waits_for_many_jobs_is_told_of_each(queue, working):
    sent = [await queue.enqueue(add.job(number)) for number in range(24)]
    waiting = [asyncio.create_task(each.result(timeout=SOON_S)) for each in sent]
    async with working():
        assert list(range(24)) == await asyncio.gather(*waiting)


async def test_what_is_not_there_has_no_result(queue):
    with pytest.raises(JobNotFound):
        await queue.job("mail", "absent").result(timeout=SOON_S)
