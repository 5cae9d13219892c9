"""
Claim: workers over HTTP claim jobs, and end their runs by ack, retry, bury, release; extend keeps a run.
"""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from duly import JobCancelled, JobFailed, JobState, LeaseLost
from duly.record.tables import attempts, jobs
from tests.contract.faces import NO_RECORD, RECORDS
from tests.contract.kit import SOON_S, new, reaches

ERROR = {"type": "Refused", "message": "no such user"}


async def test_a_claimed_job_is_its_workers(queue, worker):
    sent = await queue.enqueue("mail", {"to": "ada"}, id="a", context={"tenant": "acme"})
    [job] = await worker.claim("mail")
    assert ("mail", "a", 1, {"to": "ada"}) == (job["topic"], job["id"], job["attempt"], job["payload"])
    assert {"tenant": "acme"} == job["context"]
    running = await sent.get()
    assert JobState.running is running.state
    assert running.worker
    assert running.lease_ms > running.started_ms
    assert [] == await worker.claim("mail", wait=0)


async def test_a_worker_that_waits_gets_a_job_when_it_is_due_and_not_before(queue, worker):
    sent = await queue.enqueue("mail", delay=0.4)
    assert [] == await worker.claim("mail", wait=0)
    [job] = await worker.claim("mail")
    assert sent.id == job["id"]
    assert (await sent.get()).started_ms >= sent.placed.due_ms


async def test_each_job_is_claimed_once(queue, worker):
    await queue.enqueue_many([new("mail", n, id=str(n)) for n in range(20)])
    seen = []
    while len(seen) < 20:
        seen += [job["id"] for job in await worker.claim("mail", 7)]
    assert sorted(map(str, range(20))) == sorted(seen)
    assert [] == await worker.claim("mail", wait=0)


async def test_running_jobs_are_listed(queue, worker):
    await queue.enqueue_many([new("mail", n, id=str(n)) for n in range(3)])
    await queue.enqueue("mail", id="later", delay=60)
    claimed = []
    while len(claimed) < 3:
        claimed += await worker.claim("mail", 3)
    views = await queue.views()
    found = [job async for job in views.each(JobState.running, "mail")]
    assert [(str(n), JobState.running) for n in range(3)] == sorted((job.id, job.state) for job in found)
    await worker.end(claimed[0], "ack")
    assert 2 == len([job async for job in views.each(JobState.running, "mail")])


async def test_what_is_acked_has_succeeded(queue, worker):
    sent = await queue.enqueue("mail")
    [job] = await worker.claim("mail")
    assert "succeeded" == (await worker.end(job, "ack", result={"sent": True}))["state"]
    assert {"sent": True} == await sent.result(timeout=SOON_S)
    ended = await sent.get()
    assert (JobState.succeeded, 1) == (ended.state, ended.attempts)
    assert ended.started_at <= ended.finished_at


async def test_what_is_retried_runs_again_and_says_why_meanwhile(queue, worker):
    sent = await queue.enqueue("mail")
    [job] = await worker.claim("mail")
    assert "scheduled" == (await worker.end(job, "retry", delay=0.5, error=ERROR))["state"]
    waiting = await sent.get()
    assert (JobState.scheduled, 1) == (waiting.state, waiting.attempts)
    assert b"no such user" in waiting.outcome
    [again] = await worker.claim("mail")
    assert (sent.id, 2) == (again["id"], again["attempt"])
    await worker.end(again, "ack", result=2)
    assert 2 == await sent.result(timeout=SOON_S)
    assert 2 == (await sent.get()).attempts


async def test_the_last_retry_makes_a_job_dead(queue, worker):
    sent = await queue.enqueue("mail", max_attempts=1)
    [job] = await worker.claim("mail")
    assert "dead" == (await worker.end(job, "retry", error=ERROR))["state"]
    with pytest.raises(JobFailed, match="no such user"):
        await sent.result(timeout=SOON_S)


async def test_what_is_buried_is_dead_after_one_attempt(queue, worker):
    sent = await queue.enqueue("mail", max_attempts=5)
    [job] = await worker.claim("mail")
    assert "dead" == (await worker.end(job, "bury", error=ERROR))["state"]
    with pytest.raises(JobFailed, match="no such user"):
        await sent.result(timeout=SOON_S)
    assert (JobState.dead, 1) == ((await sent.get()).state, (await sent.get()).attempts)


async def test_what_is_released_is_ready_and_nothing_is_counted(queue, worker):
    sent = await queue.enqueue("mail")
    [job] = await worker.claim("mail")
    assert "ready" == (await worker.end(job, "release"))["state"]
    assert (JobState.ready, 0) == ((await sent.get()).state, (await sent.get()).attempts)
    [again] = await worker.claim("mail")
    assert (sent.id, 1) == (again["id"], again["attempt"])


async def test_a_lease_that_is_extended_ends_later(queue, worker):
    sent = await queue.enqueue("mail", ttr=3600)
    [job] = await worker.claim("mail", lease=10)
    before = (await sent.get()).lease_ms
    said = await worker.end(job, "extend", lease=600)
    assert "running" == said["state"]
    assert (await sent.get()).lease_ms > before + 300_000
    await worker.end(job, "ack", result=1)
    assert 1 == await sent.result(timeout=SOON_S)


async def test_the_same_end_again_is_answered_alike(queue, worker):
    await queue.enqueue("mail")
    [job] = await worker.claim("mail")
    assert await worker.end(job, "ack", result=1) == await worker.end(job, "ack", result=1)


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
async def test_a_run_that_was_cancelled_ends_nothing(queue, worker, verb):
    sent = await queue.enqueue("mail")
    [job] = await worker.claim("mail")
    await sent.cancel()
    with pytest.raises(LeaseLost):
        await worker.end(job, verb)
    assert JobState.cancelled is (await sent.get()).state
    with pytest.raises(JobCancelled):
        await sent.result(timeout=SOON_S)


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
async def test_a_run_whose_job_another_worker_has_ends_nothing(queue, worker, verb):
    sent = await queue.enqueue("mail")
    [old] = await worker.claim("mail")
    await worker.end(old, "retry", delay=0)
    [job] = await worker.claim("mail")
    with pytest.raises(LeaseLost):
        await worker.end(old, verb)
    assert JobState.running is (await sent.get()).state
    await worker.end(job, "ack", result="of the second")
    assert "of the second" == await sent.result(timeout=SOON_S)


async def test_who_waits_for_a_reply_is_told_how_the_run_ended(queue, worker):
    await queue.enqueue("mail", id="good", reply_to="answers")
    await queue.enqueue("mail", id="bad", reply_to="answers")
    claimed = []
    while len(claimed) < 2:
        claimed += await worker.claim("mail", 2)
    for job in claimed:
        await worker.end(job, *{"good": ["ack"], "bad": ["bury"]}[job["id"]])
    told = {}
    async for reply in queue.replies("answers", wait=SOON_S):
        told[reply.job.id] = reply.state
        if len(told) == 2:
            await reply.ack()
            break
    assert {"good": JobState.succeeded, "bad": JobState.dead} == told


@pytest.mark.unsupported(*NO_RECORD, reason="there is none: `Duly(url, record=…)`")
@pytest.mark.broken(
    *RECORDS,
    reason="only workers in Python tell the record of a run that did not end its job, and the name of the "
    "worker, until rows are written from events: *The record, made simpler and true*",
)
async def test_each_run_is_a_row_of_the_record(queue, worker, beside, working):
    database = (await beside.record()).database
    sent = await queue.enqueue("mail")
    [job] = await worker.claim("mail")
    await worker.end(job, "retry", delay=0, error=ERROR)
    [again] = await worker.claim("mail")
    await worker.end(again, "ack", result=1)
    await reaches(sent, JobState.succeeded)

    async def rows(table):
        mine = select(table).where(table.c.namespace == beside.settings.namespace)
        return await database.read(lambda connection: connection.execute(mine).mappings().all())

    # A worker in Python takes over what is not in the record yet: runs first, then how the job ended.
    async with working(), asyncio.timeout(SOON_S):
        while [row["ended_ms"] for row in await rows(jobs)] == [None]:
            await asyncio.sleep(0.05)
    assert [(1, "w1"), (2, "w1")] == sorted((row["attempt"], row["worker"]) for row in await rows(attempts))
