"""
Cancel: end a job, also while it runs.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Conflict, JobCancelled, JobNotFound, JobState
from tests.contract.handlers import add, fail, hold
from tests.contract.kit import FAR, SOON_S, reaches
from tests.eventually import eventually


async def test_a_job_that_waits_is_ended(queue):
    for options in ({}, {"delay": 60}, {"due_at": FAR}):
        sent = await queue.enqueue("mail", **options)
        assert JobState.cancelled is await sent.cancel()
        job = await sent.get()
        assert (JobState.cancelled, 0) == (job.state, job.attempts)
        assert job.finished_at is not None


async def test_a_cancelled_job_does_not_run(queue, working):
    sent = await queue.enqueue(add.job(1))
    await sent.cancel()
    other = await queue.enqueue(add.job(2))
    async with working():
        assert 2 == await other.result(timeout=SOON_S)
        with pytest.raises(JobCancelled):
            await sent.result(timeout=SOON_S)
    assert 0 == (await sent.get()).attempts


async def test_a_running_job_is_stopped(queue, working, flag, tmp_path):
    told = tmp_path / "told"
    sent = await queue.enqueue(hold.job(str(flag), str(told)))
    async with working():
        await reaches(sent, JobState.running)
        assert JobState.cancelled is await sent.cancel()
        with pytest.raises(JobCancelled):
            await sent.result(timeout=SOON_S)
        await eventually(told.exists, SOON_S)
        assert JobState.cancelled is (await sent.get()).state


async def test_who_comes_too_late_is_told_how_it_ended(queue, working):
    good, bad = await queue.enqueue(add.job(1)), await queue.enqueue(fail.job())
    async with working():
        await good.result(timeout=SOON_S)
        await reaches(bad, JobState.dead)
        assert (JobState.succeeded, JobState.dead) == (await good.cancel(), await bad.cancel())
    assert 1 == await good.result(timeout=SOON_S)


async def test_a_second_time_changes_nothing(queue):
    sent = await queue.enqueue("mail", delay=60)
    await sent.cancel()
    ended = (await sent.get()).finished_at
    assert JobState.cancelled is await sent.cancel()
    assert ended == (await sent.get()).finished_at


async def test_of_many_who_cancel_at_once_each_is_told_the_same(queue):
    sent = await queue.enqueue("mail", delay=60)
    assert [JobState.cancelled] * 10 == await asyncio.gather(*(sent.cancel() for _ in range(10)))


async def test_what_is_not_there_cannot_be_cancelled(queue):
    with pytest.raises(JobNotFound):
        await queue.job("mail", "absent").cancel()


async def test_only_the_revision_that_was_named_is_cancelled(queue):
    sent = await queue.enqueue("mail", delay=60)
    moved = await sent.reschedule(delay=90)
    with pytest.raises(Conflict):
        await sent.cancel(revision=sent.placed.revision)
    assert JobState.scheduled is (await sent.get()).state
    assert JobState.cancelled is await sent.cancel(revision=moved.revision)


async def test_a_revision_of_a_job_that_is_gone_is_not_cancelled(queue):
    with pytest.raises(JobNotFound):
        await queue.job("mail", "never").cancel(revision=1)
