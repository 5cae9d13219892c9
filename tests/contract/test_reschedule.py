"""
Reschedule: another due time for a job that has not started.
"""

from __future__ import annotations

import pytest

from duly import Conflict, JobNotFound, JobState, UsageError
from tests.contract.handlers import add, hold
from tests.contract.kit import FAR, SOON_S, reaches


async def test_a_scheduled_job_is_moved_to_a_due_time(queue):
    sent = await queue.enqueue("mail", 1, id="a", delay=60)
    moved = await sent.reschedule(due_at=FAR)
    assert ("rescheduled", JobState.scheduled) == (moved.word, moved.state)
    assert sent.placed.revision < moved.revision
    job = await sent.get()
    assert (FAR, moved.revision, b"1") == (job.due_at, moved.revision, job.payload)


async def test_a_scheduled_job_is_moved_by_a_delay(queue):
    sent = await queue.enqueue("mail", delay=60)
    later = await sent.reschedule(delay=600)
    assert sent.placed.due_ms + 500_000 < later.due_ms
    sooner = await sent.reschedule(delay=30)
    assert later.due_ms > sooner.due_ms == (await sent.get()).due_ms


async def test_a_ready_job_waits_again(queue):
    sent = await queue.enqueue("mail")
    await sent.reschedule(delay=60)
    assert JobState.scheduled is (await sent.get()).state
    assert [] == await (await queue.views()).peek("mail")


async def test_a_job_that_was_moved_to_now_runs(queue, working):
    sent = await queue.enqueue(add.job(4), due_at=FAR)
    async with working():
        await sent.reschedule(delay=0)
        assert 4 == await sent.result(timeout=SOON_S)


async def test_only_the_revision_that_was_named_is_moved(queue):
    sent = await queue.enqueue("mail", delay=60)
    moved = await sent.reschedule(delay=90, revision=sent.placed.revision)
    with pytest.raises(Conflict):
        await sent.reschedule(delay=120, revision=sent.placed.revision)
    assert moved.due_ms == (await sent.get()).due_ms


async def test_a_running_job_is_not_moved(queue, working, flag):
    sent = await queue.enqueue(hold.job(str(flag)))
    async with working():
        await reaches(sent, JobState.running)
        with pytest.raises(Conflict):
            await sent.reschedule(delay=1)
        flag.touch()
        assert "held" == await sent.result(timeout=SOON_S)


async def test_an_ended_job_is_not_moved(queue, working):
    cancelled, done = await queue.enqueue("mail", delay=60), await queue.enqueue(add.job(1))
    await cancelled.cancel()
    async with working():
        await done.result(timeout=SOON_S)
        for ended in (cancelled, done):
            with pytest.raises(Conflict):
                await ended.reschedule(delay=1)


async def test_what_is_not_there_cannot_be_moved(queue):
    with pytest.raises(JobNotFound):
        await queue.job("mail", "absent").reschedule(delay=1)


async def test_one_time_is_needed_and_not_two(queue):
    sent = await queue.enqueue("mail", delay=60)
    for wrong in ({}, {"delay": 1, "due_at": FAR}, {"delay": -1}, {"due_at": FAR.replace(tzinfo=None)}):
        with pytest.raises(UsageError):
            await sent.reschedule(**wrong)
    assert sent.due_at == (await sent.get()).due_at
