import asyncio
import contextvars
import threading
import time
from datetime import UTC, datetime

import pytest

from duly.context import CURRENT, CurrentJob, current_job
from duly.errors import UsageError
from duly.job import JobKey, Lane, Lease

LEASE = Lease(
    key=JobKey("mail.welcome", "m-1"),
    shard=0,
    lane=Lane.normal,
    revision=7,
    token=12,
    nonce=b"\x01\x02\x03\x04\x05\x06\x07\x08",
    attempt=2,
    crashes=1,
    due_ms=1_700_000_000_500,
    claimed_ms=1_700_000_000_600,
    expires_ms=1_700_000_015_600,
    ttr_ms=30_000,
    floor_ms=1_700_000_000_500,
    payload=b"{}",
)


def running(report=lambda value: None, *, deadline=0.0):
    return CurrentJob(LEASE, {"tenant": "acme"}, deadline, report)


def test_outside_a_handler_there_is_no_current_job():
    with pytest.raises(UsageError, match="inside a handler"):
        current_job()


def test_inside_a_handler_the_job_tells_about_itself():
    def handler():
        CURRENT.set(running())
        return current_job()

    job = contextvars.copy_context().run(handler)
    assert ("m-1", "mail.welcome", 2, 1, 7) == (job.id, job.topic, job.attempt, job.crashes, job.revision)
    assert "0000000000000012-0102030405060708" == job.token
    assert {"tenant": "acme"} == job.context
    assert datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC) == job.due_at
    with pytest.raises(UsageError):
        current_job()


def test_concurrent_handlers_see_their_own_jobs():
    async def handler(job):
        CURRENT.set(job)
        await asyncio.sleep(0)
        return current_job()

    async def both():
        jobs = [running(), running()]
        return jobs, await asyncio.gather(*map(handler, jobs))

    jobs, seen = asyncio.run(both())
    assert [id(job) for job in jobs] == [id(job) for job in seen]


def test_a_cancelled_job_says_so_and_sets_its_event():
    job = running()
    early = job.cancelled_event
    assert (False, False) == (job.cancelled, early.is_set())
    job.cancel()
    assert (True, True) == (job.cancelled, early.is_set())


def test_an_event_asked_for_after_the_cancellation_is_set():
    job = running()
    job.cancel()
    assert job.cancelled_event.is_set()
    assert job.cancelled_event is job.cancelled_event


def test_a_thread_that_waits_is_woken():
    job = running()
    woken = []
    thread = threading.Thread(target=lambda: woken.append(job.cancelled_event.wait(10)))
    thread.start()
    job.cancel()
    thread.join()
    assert [True] == woken


def test_the_remaining_time_ends_at_zero():
    assert 29 < running(deadline=time.monotonic() + 30).remaining() <= 30
    assert 0 == running(deadline=time.monotonic() - 1).remaining()


def test_progress_is_awaited_on_the_loop():
    told = []

    async def report(value):
        told.append(value)

    async def handler():
        await running(report).progress({"done": 3})

    asyncio.run(handler())
    assert [{"done": 3}] == told


def test_progress_in_a_thread_needs_no_await_but_allows_it():
    told = []

    async def handler():
        job = running(told.append)
        job.progress(1)
        await job.progress(2)

    asyncio.run(handler())
    assert [1, 2] == told
