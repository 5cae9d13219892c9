"""
Requeue: run a job again that has ended.
"""

from __future__ import annotations

import pytest

from duly import Conflict, JobNotFound, JobState
from tests.contract.handlers import add, fail, hold, tell
from tests.contract.kit import SOON_S, reaches


async def test_a_job_that_succeeded_runs_again(queue, working):
    sent = await queue.enqueue(tell.job("x"))
    async with working():
        await sent.result(timeout=SOON_S)
    # While nobody works, so that it is still ready when the answer is made.
    again = await sent.requeue()
    assert ("requeued", JobState.ready) == (again.word, again.state)
    assert sent.placed.revision < again.revision
    async with working():
        told = await sent.result(timeout=SOON_S)
        assert ("x", 1) == (told["said"], told["attempt"])
        assert again.revision == (await sent.get()).revision


async def test_a_dead_job_has_all_its_attempts_again(queue, working):
    sent = await queue.enqueue(fail.job("first"))
    async with working():
        await reaches(sent, JobState.dead)
        revision = (await sent.requeue()).revision
        job = await reaches(sent, JobState.dead)
    assert (revision, 1) == (job.revision, job.attempts)


async def test_a_cancelled_job_runs(queue, working):
    sent = await queue.enqueue(add.job(1), delay=3600)
    await sent.cancel()
    await sent.requeue()
    async with working():
        assert 1 == await sent.result(timeout=SOON_S)


async def test_a_job_that_has_not_ended_is_not_run_again(queue, working, flag):
    waiting, running = await queue.enqueue("mail", delay=60), await queue.enqueue(hold.job(str(flag)))
    async with working():
        await reaches(running, JobState.running)
        for open_ in (waiting, running):
            with pytest.raises(Conflict):
                await open_.requeue()
        flag.touch()
        await running.result(timeout=SOON_S)


async def test_what_is_not_there_cannot_be_run_again(queue):
    with pytest.raises(JobNotFound):
        await queue.job("mail", "absent").requeue()


async def test_only_the_revision_that_was_named_runs_again(queue):
    sent = await queue.enqueue("mail", delay=60)
    await sent.cancel()
    ended = (await sent.get()).revision
    with pytest.raises(Conflict):
        await sent.requeue(revision=ended + 1)
    assert JobState.cancelled is (await sent.get()).state
    assert ended < (await sent.requeue(revision=ended)).revision
    await sent.cancel()
    with pytest.raises(Conflict):
        await sent.requeue(revision=ended)
