"""
Pause and resume: let no more jobs of a topic start, and let them start again.
"""

from __future__ import annotations

import pytest

from duly import JobState, UsageError
from tests.contract.handlers import add, hold, tell
from tests.contract.kit import SOON_S, listed, reaches


async def test_jobs_of_a_paused_topic_wait_and_others_run(queue, working):
    await queue.pause("add")
    paused = [await queue.enqueue(add.job(number)) for number in range(6)]
    async with working():
        # Each of these was claimed behind a paused one.
        for _ in range(6):
            await (await queue.enqueue(tell.job())).result(timeout=SOON_S)
        found = [await each.get() for each in paused]
        assert [(JobState.ready, 0)] * 6 == [(job.state, job.attempts) for job in found]


async def test_no_worker_is_given_jobs_of_a_paused_topic(queue, worker):
    await queue.pause("mail")
    ids = sorted([(await queue.enqueue("mail")).id for _ in range(6)])
    await queue.enqueue("sms", id="other")
    assert ["other"] == [job["id"] for job in await worker.claim("sms")]
    assert [] == await worker.claim("mail", 6, wait=0)
    await queue.resume("mail")
    claimed = []
    while len(claimed) < 6:
        claimed += [job["id"] for job in await worker.claim("mail", 6)]
    assert ids == sorted(claimed)


async def test_a_resumed_topic_runs_what_waited(queue, working):
    await queue.pause("add")
    paused = [await queue.enqueue(add.job(number)) for number in range(6)]
    async with working():
        await (await queue.enqueue(tell.job())).result(timeout=SOON_S)
        await queue.resume("add")
        assert list(range(6)) == [await each.result(timeout=SOON_S) for each in paused]


async def test_a_running_job_finishes(queue, working, flag):
    sent = await queue.enqueue(hold.job(str(flag)))
    async with working():
        await reaches(sent, JobState.running)
        await queue.pause("hold")
        flag.touch()
        assert "held" == await sent.result(timeout=SOON_S)


async def test_a_pause_needs_the_name_of_a_topic(queue):
    for verb in (queue.pause, queue.resume):
        with pytest.raises(UsageError):
            await verb("no topic")


async def test_each_change_is_told_once(queue):
    for verb in (queue.pause, queue.pause, queue.resume, queue.resume):
        await verb("add")
    events = await listed(queue.events(verbs=["paused", "resumed"], since="start", wait=0))
    assert [("paused", "add"), ("resumed", "add")] == [(event.verb, event.topic) for event in events]
