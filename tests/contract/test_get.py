"""
Get: a job as it is now.
"""

from __future__ import annotations

import pytest

from duly import JobNotFound, JobState, UsageError
from tests.contract.handlers import add, fail, hold
from tests.contract.kit import SOON_S, reaches


async def test_somebody_else_finds_the_job_by_topic_and_id(queue):
    sent = await queue.enqueue("mail", 1, id="a", delay=60)
    job = await queue.job("mail", "a").get()
    assert (sent.key, sent.placed.revision, sent.due_at) == (job.key, job.revision, job.due_at)


async def test_a_running_job_tells_who_runs_it_and_since_when(queue, working, flag):
    sent = await queue.enqueue(hold.job(str(flag)))
    async with working():
        job = await reaches(sent, JobState.running)
        flag.touch()
        await sent.result(timeout=SOON_S)
    assert job.due_at <= job.started_at
    assert job.worker
    assert job.lease_ms > job.started_ms


async def test_a_job_that_succeeded_keeps_its_result_and_its_times(queue, working):
    sent = await queue.enqueue(add.job(2, 3))
    async with working():
        await sent.result(timeout=SOON_S)
        job = await sent.get()
    assert (JobState.succeeded, b"5", 1) == (job.state, job.outcome, job.attempts)
    assert job.due_at <= job.started_at <= job.finished_at


async def test_a_dead_job_keeps_its_error(queue, working):
    sent = await queue.enqueue(fail.job("no such user"))
    async with working():
        job = await reaches(sent, JobState.dead)
    assert b"ValueError" in job.outcome
    assert b"no such user" in job.outcome


async def test_several_jobs_are_asked_for_at_once(queue):
    sent = [await queue.enqueue("mail", number, delay=60) for number in range(5)]
    absent = queue.job("mail", "absent")
    views = await queue.views()
    found = await views.get_many([sent[3].key, absent.key, sent[0].key])
    assert [b"3", None, b"0"] == [job and job.payload for job in found]
    assert None is await views.get(absent.key)


async def test_a_job_that_is_not_there_is_an_error(queue):
    with pytest.raises(JobNotFound, match="mail/absent"):
        await queue.job("mail", "absent").get()


async def test_a_handle_needs_names_that_a_job_can_have(queue):
    for topic, id_ in (("no topic", "a"), ("mail", "a/b"), ("mail", "")):
        with pytest.raises(UsageError):
            queue.job(topic, id_)


@pytest.mark.parametrize("wrong", [("mail", "a"), "mail/a", None], ids=repr)
async def test_what_names_no_job_is_refused_in_a_sentence(queue, wrong):
    views = await queue.views()
    with pytest.raises(UsageError, match="names no job"):
        await views.get(wrong)
    with pytest.raises(UsageError, match="names no job"):
        await views.get_many([wrong])
