"""
Retry: a run that failed is repeated, until the attempts are used up.
"""

from __future__ import annotations

import pytest

from duly import JobFailed, JobState
from tests.contract.handlers import again, fail, flaky
from tests.contract.kit import SOON_S, reaches


async def test_a_job_that_failed_runs_again(queue, working):
    sent = await queue.enqueue(flaky.job(2))
    async with working():
        assert 3 == await sent.result(timeout=SOON_S)
    job = await sent.get()
    assert (JobState.succeeded, 3) == (job.state, job.attempts)


async def test_the_last_failure_makes_a_job_dead(queue, working):
    sent = await queue.enqueue(flaky.job(3))
    async with working():
        with pytest.raises(JobFailed, match="attempt 3 failed"):
            await sent.result(timeout=SOON_S)
    job = await sent.get()
    assert (JobState.dead, 3) == (job.state, job.attempts)


async def test_a_job_may_have_other_attempts_than_its_handler(queue, working):
    sent = await queue.enqueue(flaky.job(2), max_attempts=2)
    async with working():
        with pytest.raises(JobFailed, match="attempt 2 failed"):
            await sent.result(timeout=SOON_S)


async def test_a_handler_asks_for_another_run_after_a_delay(queue, working):
    sent = await queue.enqueue(again.job(0.05))
    async with working():
        assert 2 == await sent.result(timeout=SOON_S)


async def test_between_its_attempts_a_job_is_scheduled_and_says_why(queue, working):
    sent = await queue.enqueue(again.job(3600))
    async with working():
        job = await reaches(sent, JobState.scheduled)
    assert 1 == job.attempts
    assert job.due_ms > sent.placed.due_ms + 3_000_000
    assert b"not yet" in job.outcome


async def test_a_job_with_one_attempt_is_dead_at_once(queue, working):
    sent = await queue.enqueue(fail.job())
    async with working():
        assert 1 == (await reaches(sent, JobState.dead)).attempts
