"""
What people do to jobs while a worker runs them: cancel, replace, reschedule, requeue, wait.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
import redis

from duly import Conflict, JobCancelled, JobFailed, JobNotFound, UsageError, current_job
from duly.job import JobState
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, tally, working
from tests.services.test_limits import gone
from tests.shards import fixed_of, one_id_on_each


@pytest.fixture
def patient(make_app):
    """
    An app whose heart beats every few minutes: nothing that happens sooner was found by it.
    """
    return make_app(lease=900)


async def test_cancelling_stops_an_async_handler_at_once(patient):
    started, stopped = asyncio.Event(), []

    @patient.handler("long")
    async def long() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    async with working(patient):
        job = await patient.enqueue(long.job())
        await asyncio.wait_for(started.wait(), 10)
        assert JobState.cancelled is await job.cancel()
        await eventually(lambda: bool(stopped), 30)
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)
    assert ("cancelled", 0, 0) == await tally(job)


async def test_cancelling_stops_a_run_on_whichever_shard_its_job_is(patient):
    started, stopped = set(), set()

    @patient.handler("long")
    async def long() -> None:
        started.add(current_job().id)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            stopped.add(current_job().id)
            raise

    ids = one_id_on_each(await patient.store(), "long")
    async with working(patient):
        jobs = [await patient.enqueue(long.job(), id=id_) for id_ in ids]
        await eventually(lambda: set(ids) == started, 30)
        for job in jobs:
            assert JobState.cancelled is await job.cancel()
        await eventually(lambda: set(ids) == stopped, 30)


async def test_cancelling_tells_a_thread_and_what_it_returns_does_not_count(patient):
    started, told = threading.Event(), []

    @patient.handler("long")
    def long() -> str:
        started.set()
        told.append(current_job().cancelled_event.wait(30))
        return "too late"

    async with working(patient):
        job = await patient.enqueue(long.job())
        await eventually(started.is_set)
        await job.cancel()
        await eventually(lambda: [True] == told, 30)
    assert ("cancelled", b'{"type":"cancelled"}') == ((await job.get()).state.name, (await job.get()).outcome)


async def test_cancelling_kills_a_process(patient, tmp_path):
    patient.handlers.add(processes.linger)
    path = tmp_path / "pid"
    async with working(patient):
        job = await patient.enqueue(processes.linger.job(str(path)))
        await eventually(lambda: path.exists() and path.read_text() != "", 30)
        await job.cancel()
        await eventually(lambda: gone(path.read_text()), 30)
    assert "cancelled" == (await job.get()).state.name


async def test_cancelling_an_ended_job_returns_its_state_and_a_waiting_one_never_runs(app):
    ran = []

    @app.handler("quick")
    async def quick() -> None:
        ran.append(current_job().id)

    waiting = await app.enqueue(quick.job(), id="waiting", delay=0.1)
    assert JobState.cancelled is await waiting.cancel()
    async with working(app):
        job = await app.enqueue(quick.job(), id="done", delay=0.2)
        await job.result(timeout=10)
        assert JobState.succeeded is await job.cancel()
    assert ["done"] == ran
    with pytest.raises(JobNotFound):
        await app.job("quick", "never").cancel()


async def test_replacing_a_running_job_tells_it_and_runs_the_new_revision(app):
    log = []

    @app.handler("version")
    async def version(number: int) -> int:
        log.append(f"started {number}")
        try:
            await asyncio.sleep(60 if number == 1 else 0)
        except asyncio.CancelledError:
            log.append(f"stopped {number}")
            raise
        return number

    async with working(app):
        first = await app.enqueue(version.job(1), id="v")
        await eventually(lambda: ["started 1"] == log)
        second = await app.enqueue(version.job(2), id="v", on_conflict="replace")
        assert second.created
        assert second.placed.revision > first.placed.revision
        assert 2 == await second.result(timeout=10)
    assert {"started 1", "stopped 1", "started 2"} == set(log)
    assert 1 == (await second.get()).attempts


async def test_a_job_that_waits_can_be_moved_and_one_that_runs_cannot(app):
    gate = asyncio.Event()

    @app.handler("moved")
    async def moved() -> str:
        await gate.wait()
        return "done"

    async with working(app):
        job = await app.enqueue(moved.job(), delay=timedelta(hours=1))
        placed = await job.reschedule(delay=0.05)
        assert placed.revision > job.placed.revision
        await becomes(job, "running")
        with pytest.raises(Conflict, match="is running"):
            await job.reschedule(delay=5)
        with pytest.raises(Conflict):
            await job.requeue()
        gate.set()
        assert "done" == await job.result(timeout=10)
        with pytest.raises(Conflict):
            await job.reschedule(due_at=datetime.now(UTC))
    for wrong in ({}, {"delay": 1, "due_at": datetime.now(UTC)}, {"due_at": datetime.now()}):  # noqa: DTZ005
        with pytest.raises(UsageError):
            await job.reschedule(**wrong)


async def test_a_requeued_job_runs_again_from_the_first_attempt(app):
    fail = [True]

    @app.handler("mended", max_attempts=1)
    async def mended() -> int:
        if fail[0]:
            raise RuntimeError("broken")
        return current_job().attempt

    async with working(app):
        job = await app.enqueue(mended.job())
        with pytest.raises(JobFailed, match="broken"):
            await job.result(timeout=10)
        fail[0] = False
        await job.requeue()
        assert 1 == await job.result(timeout=10)


async def test_a_result_is_awaited_for_as_long_as_asked(app):
    with pytest.raises(TimeoutError, match=r"^nobody/n-1 has not ended within 50ms: "):
        await (await app.enqueue("nobody", {}, id="n-1")).result(timeout="50ms")
    with pytest.raises(JobNotFound):
        await app.job("nobody", "unknown").result(timeout=30)


async def test_what_expires_before_it_starts_is_cancelled(app):
    @app.handler("late")
    async def late() -> None: ...

    job = await app.enqueue(late.job(), expires=datetime.now(UTC) + timedelta(milliseconds=50))
    await eventually(lambda: datetime.now(UTC) > job.due_at + timedelta(milliseconds=60))
    async with working(app):
        with pytest.raises(JobCancelled, match="expired"):
            await job.result(timeout=10)


async def test_waiters_are_woken_by_the_end_itself_and_not_by_the_next_look(app, monkeypatch):
    # Looks would be a minute apart, also the first: only a message can be as quick as this.
    monkeypatch.setattr("duly.waiting.FIRST_RECHECK_S", 60)
    monkeypatch.setattr("duly.waiting.RECHECK_S", 60)

    @app.handler("quick")
    async def quick(number: int) -> int:
        return number

    async with working(app):
        for number in range(20):
            # Sent first, awaited while it may be ending: no message falls between look and subscription.
            job = await app.enqueue(quick.job(number))
            assert number == await job.result(timeout=30)
        jobs = [await app.enqueue(quick.job(number), delay=0.1) for number in range(20)]
        assert list(range(20)) == await asyncio.gather(*(job.result(timeout=30) for job in jobs))


async def test_waiters_whose_message_never_comes_look_by_themselves(app, monkeypatch):
    async def listen(*_):
        await asyncio.Event().wait()
        yield "", b""

    @app.handler("quick")
    async def quick(number: int) -> int:
        return number

    async with working(app):
        monkeypatch.setattr((await app.store()).link, "listen", listen)
        job = await app.enqueue(quick.job(1), delay=0.1)
        assert 1 == await job.result(timeout=30)


async def test_a_thousand_waiters_share_a_few_connections(app, valkey):
    @app.handler("held")
    async def held(number: int) -> int:
        return number

    raw = redis.Redis(unix_socket_path=str(valkey.socket))
    jobs = await app.enqueue_many([held.job(number) for number in range(1000)])
    waiting = [asyncio.create_task(job.result(timeout=30)) for job in jobs]
    before = raw.info("clients")["connected_clients"]
    async with working(app, concurrency=100):
        assert list(range(1000)) == await asyncio.gather(*waiting)
        assert raw.info("clients")["connected_clients"] - before < 60
    raw.close()


async def test_waiters_are_told_of_the_end_on_whichever_shard_the_job_is(app, monkeypatch):
    monkeypatch.setattr("duly.waiting.FIRST_RECHECK_S", 600)
    monkeypatch.setattr("duly.waiting.RECHECK_S", 600)
    gate = asyncio.Event()

    @app.handler("held")
    async def held() -> str:
        await gate.wait()
        return current_job().id

    store = await app.store()
    ids = one_id_on_each(store, "held")
    async with working(app):
        jobs = [await app.enqueue(held.job(), id=id_) for id_ in ids]
        waiting = [asyncio.create_task(job.result(timeout=60)) for job in jobs]
        channels = [keys.fixed["ended_channel"] for keys in store.keys]

        async def all_listened_to() -> None:
            assert all((await store.link.call("PUBSUB", "NUMSUB", *channels))[1::2])

        await eventually(all_listened_to, 30)
        # Who has just subscribed looks once: only then is the end told by the message alone.
        waiters = await app.waiters()
        await eventually(lambda: all(job.key.member in waiters._waiting for job in jobs))
        for job in jobs:
            await becomes(job, "running")
        gate.set()
        assert ids == await asyncio.gather(*waiting)


async def test_waiters_survive_a_cut_subscription(app, valkey, monkeypatch):
    monkeypatch.setattr("duly.waiting.FIRST_RECHECK_S", 60)
    monkeypatch.setattr("duly.waiting.RECHECK_S", 60)
    gate = asyncio.Event()

    @app.handler("held")
    async def held() -> str:
        await gate.wait()
        return "done"

    raw = redis.Redis(unix_socket_path=str(valkey.socket))
    async with working(app):
        job = await app.enqueue(held.job())
        waiting = asyncio.create_task(job.result(timeout=50))
        await becomes(job, "running")
        channel = fixed_of(await app.store(), *job.key)["ended_channel"]
        await eventually(lambda: raw.pubsub_numsub(channel)[0][1] == 1)
        raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        gate.set()
        assert "done" == await asyncio.wait_for(waiting, 30)
    raw.close()
