"""
Snooze: a handler puts its job off, without using up an attempt.
"""

from __future__ import annotations

import time

from duly import JobState
from tests.contract.handlers import nap, snooze
from tests.contract.kit import SOON_S, reaches


async def test_a_job_that_snoozed_runs_again_in_its_first_attempt(queue, working):
    async with working():
        sent = await queue.enqueue(snooze.job(int(time.time() * 1000) + 200))
        assert 1 == await sent.result(timeout=SOON_S)
    assert 1 == (await sent.get()).attempts


async def test_meanwhile_it_is_scheduled(queue, working):
    sent = await queue.enqueue(nap.job(3600))
    async with working():
        job = await reaches(sent, JobState.scheduled)
    assert 0 == job.attempts
    assert job.due_ms > sent.placed.due_ms + 3_000_000
