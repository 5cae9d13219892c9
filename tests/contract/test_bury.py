"""
Bury: a handler ends its job for good.
"""

from __future__ import annotations

import pytest

from duly import JobFailed, JobState
from tests.contract.handlers import bury, slow, unstorable, unstorable_block
from tests.contract.kit import SOON_S


async def test_a_buried_job_is_dead_after_one_attempt(queue, working):
    sent = await queue.enqueue(bury.job("no such user"))
    async with working():
        with pytest.raises(JobFailed, match="no such user"):
            await sent.result(timeout=SOON_S)
    job = await sent.get()
    assert (JobState.dead, 1) == (job.state, job.attempts)


async def test_a_result_that_cannot_be_stored_makes_a_job_dead_after_one_attempt(queue, working):
    jobs = [unstorable.job(), unstorable_block.job(), unstorable.job(large=True)]
    sent = [await queue.enqueue(job) for job in jobs]
    async with working():
        for job, why in zip(sent, ("no form in JSON", "no form in JSON", "the limit is"), strict=True):
            with pytest.raises(JobFailed, match=f"UsageError: result .*{why}"):
                await job.result(timeout=SOON_S)
            found = await job.get()
            assert (JobState.dead, 1) == (found.state, found.attempts)


async def test_arguments_that_the_handler_does_not_take_bury_the_job(queue, working):
    sent = await queue.enqueue("add", {"left": "two", "middle": 3})
    async with working():
        with pytest.raises(JobFailed):
            await sent.result(timeout=SOON_S)
    assert b'"two"' in (await sent.get()).payload


async def test_a_run_that_takes_too_long_is_a_failure(queue, working, flag):
    sent = await queue.enqueue(slow.job(str(flag)))
    async with working():
        with pytest.raises(JobFailed, match=r"0\.2"):
            await sent.result(timeout=SOON_S)
