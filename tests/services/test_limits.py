"""
Time to run, concurrency, and threads that would not stop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from duly import Fixed, JobFailed, current_job
from duly.services import stragglers
from duly.services.children import START_S
from duly.services.running import Running
from duly.services.worker import WORN_HANDLERS, WornOut
from duly.store import Store
from tests.eventually import eventually
from tests.services import processes, slow_start
from tests.services.conftest import LAZY, becomes, tally, working
from tests.shards import shard_of


async def test_an_async_handler_over_its_time_is_cancelled_and_the_attempt_failed(app):
    stopped = []

    @app.handler("slow", ttr=0.1, max_attempts=2, backoff=Fixed(0.01))
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(current_job().cancelled)
            raise

    async with working(app):
        job = await app.enqueue(slow.job())
        with pytest.raises(JobFailed, match=r"TimeoutError: ran longer than its time to run of 0\.1 s"):
            await job.result(timeout=10)
    assert [True, True] == stopped
    assert (2, 0) == (await tally(job))[1:]


async def test_a_thread_over_its_time_is_told_and_its_slot_is_written_off(app):
    told = threading.Event()

    @app.handler("slow", ttr=0.1, max_attempts=1, concurrency=1)
    def slow() -> None:
        if current_job().cancelled_event.wait(10):
            told.set()

    async with working(app, concurrency=1):
        with pytest.raises(JobFailed, match="TimeoutError"):
            await (await app.enqueue(slow.job())).result(timeout=10)
        await eventually(told.is_set)
        with pytest.raises(JobFailed, match="TimeoutError"):
            await (await app.enqueue(slow.job())).result(timeout=10)


async def test_a_process_over_its_time_is_killed_and_the_attempt_failed(app, tmp_path):
    app.handlers.add(processes.sleep)
    path = tmp_path / "pid"
    async with working(app):
        # Long enough to write down who it is.
        job = await app.enqueue(processes.sleep.job(str(path), 60.0), ttr=3)
        with pytest.raises(JobFailed, match="TimeoutError"):
            await job.result(timeout=30)
        await eventually(lambda: path.exists() and gone(path.read_text()))
    assert (1, 0) == (await tally(job))[1:]


async def test_a_lease_lasts_while_its_process_starts_and_the_time_to_run_counts_from_then(
    make_app, tmp_path, monkeypatch
):
    # The heart does not beat during this test.
    app = make_app(lease=600)
    app.handlers.add(slow_start.slow_start)
    gate, begun, end = (tmp_path / name for name in ("gate", "begun", "end"))
    monkeypatch.setenv(slow_start.GATE, str(gate))
    workers = []
    monkeypatch.setattr(
        Running, "begin", lambda self, run, begin=Running.begin: workers.append(self) or begin(self, run)
    )
    store = await app.store()
    ttr_ms = 100_000
    longest_ms = ttr_ms + store.grace_ms

    async with working(app):
        job = await app.enqueue(slow_start.slow_start.job(str(begun), str(end)), ttr=ttr_ms / 1000)
        await becomes(job, "running", 60)

        async def spare_ms() -> int:
            now = await job.get()
            return now.lease_ms - now.started_ms - longest_ms

        async def lasts() -> None:
            assert await spare_ms() >= 1000 * START_S

        # It was claimed for less.
        await eventually(lasts, 60)
        gate.touch()
        await eventually(begun.exists, 60)
        # As the heart does.
        await store.extend(shard_of(store, *job.key), workers[0].held())
        assert 0 < await spare_ms() < 1000 * START_S
        end.touch()
        assert 0 < await job.result(timeout=60) <= ttr_ms / 1000
    assert ("succeeded", 1, 0) == await tally(job)


async def test_a_worker_with_too_many_threads_that_will_not_stop_ends(app, monkeypatch):
    monkeypatch.setattr(stragglers, "WORN_S", 0.05)
    release = threading.Event()

    @app.handler("deaf", ttr=0.05, max_attempts=1)
    def deaf() -> None:
        release.wait(20)

    for _ in range(WORN_HANDLERS):
        await app.enqueue(deaf.job())
    try:
        with pytest.raises(WornOut, match="8 handlers did not stop"):
            await asyncio.wait_for(app.work(), 20)
    finally:
        release.set()


async def test_threads_that_stop_when_told_wear_nothing_out(app, monkeypatch):
    monkeypatch.setattr(stragglers, "WORN_S", 0.5)

    @app.handler("polite", ttr=0.05, max_attempts=1)
    def polite() -> None:
        current_job().cancelled_event.wait(20)

    @app.handler("after")
    async def after() -> str:
        return "still here"

    async with working(app):
        for _ in range(2):
            jobs = [await app.enqueue(polite.job()) for _ in range(10)]
            for job in jobs:
                await becomes(job, "dead")
        # Later than a thread that had not stopped would be counted.
        assert "still here" == await (await app.enqueue(after.job(), delay=0.6)).result(timeout=10)


def gone(pid: str) -> bool:
    """
    Whether a process has ended; one that nobody has waited for yet has no command line any more.
    """
    command = Path("/proc", pid, "cmdline")
    return not command.exists() or not command.read_bytes()


class Gauge:
    """
    How many run at once, now and at most.
    """

    def __init__(self) -> None:
        self.now, self.most = 0, 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


async def test_no_more_run_at_once_than_there_are_slots_in_total_and_of_a_topic(make_app):
    # A full topic does not wait for a poll when a slot of its own is free again: results would be too late.
    app = make_app(**LAZY)
    total, of_few, of_one = Gauge(), Gauge(), Gauge()

    # The first runs stay until there were as many at once as there may be.
    @app.handler("few", concurrency=3)
    async def few() -> None:
        with total, of_few:
            await eventually(lambda: of_few.most >= 3, 60)
            await asyncio.sleep(0.002)

    @app.handler("one", concurrency=1)
    def one() -> None:
        with total, of_one:
            time.sleep(0.002)

    @app.handler("any")
    async def any_() -> None:
        with total:
            await eventually(lambda: total.most >= 6, 60)
            await asyncio.sleep(0.002)

    sent = [handler.job() for _ in range(60) for handler in (few, one, any_)]
    jobs = await app.enqueue_many(sent)
    async with working(app, concurrency=6):
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    assert (6, 3, 1) == (total.most, of_few.most, of_one.most)


async def test_a_worker_at_the_limit_of_its_only_topic_goes_on_as_slots_become_free(make_app):
    app = make_app(**LAZY)

    @app.handler("single", concurrency=1)
    async def single() -> None: ...

    jobs = await app.enqueue_many([single.job() for _ in range(100)])
    async with working(app, concurrency=50):
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))


async def test_a_single_slot_is_used_again_at_once(make_app):
    app = make_app(**LAZY)

    @app.handler("next")
    async def next_() -> None:
        await asyncio.sleep(0)

    jobs = await app.enqueue_many([next_.job() for _ in range(100)])
    async with working(app, concurrency=1):
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))


async def test_only_as_many_are_claimed_as_there_are_free_slots(app, monkeypatch):
    asked = []
    claim = Store.claim

    async def spy(self, shard, wants, **options):
        answer = await claim(self, shard, wants, **options)
        asked.append((sum(min(want.free, options["limit"]) for want in wants), len(answer.leases)))
        return answer

    monkeypatch.setattr(Store, "claim", spy)
    gate = asyncio.Event()

    @app.handler("held")
    async def held() -> None:
        await gate.wait()

    jobs = await app.enqueue_many([held.job() for _ in range(20)])
    async with working(app, concurrency=4):

        async def running() -> bool:
            stats = await (await app.views()).stats()
            return (4, 16) == tuple(stats.topics[0].counts[state] for state in ("running", "ready"))

        await eventually(running)
        # The answer of a claim may be read here after that of the views, on another connection.
        await eventually(lambda: sum(taken for _, taken in asked) >= 4)
        assert 4 == sum(taken for _, taken in asked)
        assert max(wanted for wanted, _ in asked) <= 4
        gate.set()
        await asyncio.gather(*(job.result(timeout=10) for job in jobs))
