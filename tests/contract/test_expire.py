"""
Expire: a job that was not started in time is not started at all.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duly import JobCancelled, JobState
from duly.services.auditor import Auditor
from tests.contract.handlers import add
from tests.contract.kit import SOON_S


def soon():
    return datetime.now(UTC) - timedelta(seconds=30)


async def test_an_expired_job_ends_without_a_run(queue, working):
    sent = await queue.enqueue(add.job(1), expires=soon())
    async with working():
        with pytest.raises(JobCancelled, match="expired"):
            await sent.result(timeout=SOON_S)
    job = await sent.get()
    assert (JobState.cancelled, 0) == (job.state, job.attempts)


async def test_a_job_that_starts_in_time_runs(queue, working):
    sent = await queue.enqueue(add.job(1), expires=datetime.now(UTC) + timedelta(hours=1))
    async with working():
        assert 1 == await sent.result(timeout=SOON_S)


async def test_an_expired_job_that_is_requeued_runs(queue, working):
    sent = await queue.enqueue(add.job(1), expires=soon())
    async with working():
        with pytest.raises(JobCancelled):
            await sent.result(timeout=SOON_S)
        await sent.requeue()
        assert 1 == await sent.result(timeout=SOON_S)


@pytest.mark.parametrize("paused", [False, True])
async def test_an_expired_job_of_a_topic_without_workers_ends_and_replies(queue, opened, paused):
    if paused:
        await queue.pause("nobody")
    sent = await queue.enqueue("nobody", expires=soon(), reply_to="answers")
    await Auditor(await opened.beside.store()).run_pass()
    with pytest.raises(JobCancelled, match="expired"):
        await sent.result(timeout=SOON_S)
    assert JobState.cancelled is (await sent.get()).state
    [reply] = [reply async for reply in queue.replies("answers", wait=0)]
    assert (sent.key.id, JobState.cancelled) == (reply.job.id, reply.state)
