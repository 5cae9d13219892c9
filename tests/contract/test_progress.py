"""
Progress: what a running job says of how far it has come.
"""

from __future__ import annotations

import json

from duly import JobState
from tests.contract.handlers import report
from tests.contract.kit import SOON_S, reaches
from tests.eventually import eventually


async def told(sent):
    job = await sent.get()
    return json.loads(job.progress) if job.progress else None


async def test_the_newest_progress_is_seen_while_the_job_runs(queue, working, flag):
    sent = await queue.enqueue(report.job([1, {"done": 2, "of": "ä"}], str(flag)))
    async with working():
        job = await reaches(sent, JobState.running)

        async def newest():
            assert {"done": 2, "of": "ä"} == await told(sent)

        await eventually(newest, SOON_S)
        flag.touch()
        await sent.result(timeout=SOON_S)
    assert job.worker


async def test_without_a_report_there_is_none(queue):
    sent = await queue.enqueue("mail", delay=60)
    assert b"" == (await sent.get()).progress


async def test_progress_that_is_too_large_fails_the_job(queue, working, flag):
    flag.touch()
    sent = await queue.enqueue(report.job(["x" * 10_000], str(flag)))
    async with working():
        job = await reaches(sent, JobState.dead)
    assert b"UsageError" in job.outcome
