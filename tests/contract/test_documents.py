"""
Documents: what a job tells of itself.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from duly import Fixed, JobState
from duly.defaults import DEFAULTS
from tests.contract.handlers import again
from tests.contract.kit import SOON_S, reaches

FAR = datetime(2036, 2, 1, 9, tzinfo=UTC)


async def test_a_job_tells_every_option_that_it_was_sent_with(queue):
    sent = await queue.enqueue(
        "mail",
        1,
        delay=60,
        ttr=1.5,
        expires=FAR,
        max_attempts=7,
        backoff=Fixed(5),
        retain=90,
        callback="https://example.com/hook",
    )
    job = await sent.get()
    assert (timedelta(seconds=1.5), FAR, timedelta(seconds=90)) == (job.ttr, job.expires, job.retain)
    assert (7, {"kind": "fixed", "delay": 5}) == (job.max_attempts, job.backoff)
    assert "https://example.com/hook" == job.callback


async def test_a_job_that_says_nothing_tells_how_many_attempts_it_has(queue):
    job = await (await queue.enqueue("mail", 1, delay=60)).get()
    assert (DEFAULTS.max_attempts, None) == (job.max_attempts, job.backoff)


async def test_a_job_tells_when_it_was_accepted_and_due_first(queue):
    sent = await queue.enqueue("mail", 1, delay=60)
    job = await sent.get()
    assert job.created_at == job.updated_at
    assert job.due_at == job.scheduled_for
    assert timedelta(seconds=60) <= job.scheduled_for - job.created_at < timedelta(seconds=60 + SOON_S)


async def test_a_retry_leaves_when_a_job_was_due_first(queue, working):
    sent = await queue.enqueue(again.job(3600))
    before = await sent.get()
    async with working():
        job = await reaches(sent, JobState.scheduled)
    assert (before.created_at, before.scheduled_for) == (job.created_at, job.scheduled_for)
    assert job.due_at > job.scheduled_for + timedelta(seconds=3000)
    assert job.started_at <= job.updated_at < job.due_at


async def test_another_due_time_and_another_payload_leave_when_a_job_was_accepted(queue):
    sent = await queue.enqueue("mail", 1, id="a", delay=60)
    first = await sent.get()
    await sent.reschedule(delay=600)
    moved = await sent.get()
    assert first.created_at == moved.created_at
    assert (moved.due_at, True) == (moved.scheduled_for, moved.updated_at >= first.updated_at)
    await queue.enqueue("mail", 2, id="a", delay=60, on_conflict="replace")
    other = await sent.get()
    assert (first.created_at, b"2") == (other.created_at, other.payload)
    await sent.cancel()
    await sent.requeue()
    assert first.created_at == (await sent.get()).created_at
