"""
Draining: stop claiming, finish within the grace, give back the rest, save outcomes to the last.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from duly import current_job
from duly.errors import StoreUnavailable
from duly.store import Store
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, tally


async def counts(app, topic: str) -> dict[str, int]:
    stats = await (await app.views()).stats()
    return next(each.counts for each in stats.topics if each.topic == topic)


async def test_a_drain_claims_no_more_and_finishes_what_runs(make_app):
    app = make_app(drain_grace=10)
    gate = asyncio.Event()

    @app.handler("held")
    async def held() -> str:
        await gate.wait()
        return "finished while draining"

    stop = asyncio.Event()
    jobs = [await app.enqueue(held.job()) for _ in range(6)]
    work = asyncio.create_task(app.work(concurrency=2, stop=stop))
    await eventually(lambda: _equal(app, "held", running=2, ready=4))
    stop.set()
    await asyncio.sleep(0.05)
    assert not work.done()
    gate.set()
    await asyncio.wait_for(work, 10)
    assert {"succeeded": 2, "ready": 4} == {k: v for k, v in (await counts(app, "held")).items() if v}
    assert 2 == sum([(await job.get()).attempts for job in jobs])


async def _equal(app, topic: str, **expected: int) -> bool:
    found = await counts(app, topic)
    return expected == {state: found[state] for state in expected}


async def test_what_does_not_finish_within_the_grace_is_given_back_uncounted(make_app, tmp_path):
    app = make_app(drain_grace=0.1)
    app.handlers.add(processes.linger)
    stopped, release = [], threading.Event()

    @app.handler("loop")
    async def loop() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append("loop")
            raise

    @app.handler("thread")
    def thread() -> None:
        stopped.append(f"thread {current_job().cancelled_event.wait(20)}")
        release.wait(20)

    stop = asyncio.Event()
    path = tmp_path / "pid"
    jobs = [await app.enqueue(job) for job in (loop.job(), thread.job(), processes.linger.job(str(path)))]
    work = asyncio.create_task(app.work(stop=stop))
    for job in jobs:
        await becomes(job, "running")
    await eventually(path.exists, 30)
    stop.set()
    await asyncio.wait_for(work, 10)
    release.set()
    await eventually(lambda: {"loop", "thread True"} == set(stopped))
    assert [("ready", 0, 0)] * 3 == [
        (job.state.name, job.attempts, job.crashes) for job in [await handle.get() for handle in jobs]
    ]


async def test_cancelling_work_drains_and_cancelling_it_again_is_immediate(make_app):
    app = make_app(drain_grace=60)

    @app.handler("long")
    async def long() -> None:
        await asyncio.sleep(60)

    job = await app.enqueue(long.job())
    work = asyncio.create_task(app.work())
    await becomes(job, "running")
    work.cancel()
    await asyncio.sleep(0.1)
    assert not work.done()
    asked = time.monotonic()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert time.monotonic() - asked < 30
    assert ("ready", 0, 0) == await tally(job)


async def test_jobs_of_a_claim_under_way_when_the_drain_begins_are_given_back(make_app, monkeypatch):
    app = make_app(drain_grace=5)
    ran = []

    @app.handler("unlucky")
    async def unlucky() -> None:
        ran.append(1)

    await app.store()
    stop, claimed = asyncio.Event(), asyncio.Event()
    claim = Store.claim

    async def slow(self, *args, **options):
        answer = await claim(self, *args, **options)
        if answer.leases:
            # The server has leased them; the reply is on its way when the signal comes.
            claimed.set()
            await asyncio.sleep(0.2)
        return answer

    monkeypatch.setattr(Store, "claim", slow)
    job = await app.enqueue(unlucky.job())
    work = asyncio.create_task(app.work(stop=stop))
    await asyncio.wait_for(claimed.wait(), 10)
    stop.set()
    await asyncio.wait_for(work, 10)
    assert ("ready", 0, 0) == await tally(job)
    assert [] == ran


async def test_outcomes_are_saved_while_draining_even_if_the_store_is_away_for_a_while(make_app, monkeypatch):
    app = make_app(drain_grace=10)
    gate = asyncio.Event()

    @app.handler("held")
    async def held() -> str:
        await gate.wait()
        return "kept"

    refusals = iter(range(3))
    run = Store._run

    async def refuse(self, name, *args, **options):
        if name == "ack" and next(refusals, None) is not None:
            raise StoreUnavailable("away")
        return await run(self, name, *args, **options)

    monkeypatch.setattr(Store, "_run", refuse)
    stop = asyncio.Event()
    job = await app.enqueue(held.job())
    work = asyncio.create_task(app.work(stop=stop))
    await becomes(job, "running")
    stop.set()
    gate.set()
    await asyncio.wait_for(work, 10)
    assert ("succeeded", b'"kept"') == ((await job.get()).state.name, (await job.get()).outcome)
    assert next(refusals, None) is None


async def test_a_worker_says_good_bye(app):
    @app.handler("any")
    async def any_() -> None: ...

    stop = asyncio.Event()
    work = asyncio.create_task(app.work(stop=stop))

    async def known() -> list:
        return (await (await app.views()).stats()).workers

    async def is_known() -> bool:
        return 1 == len(await known())

    await eventually(is_known)
    [worker] = await known()
    assert (["any"], 16, True) == (worker["topics"], worker["concurrency"], worker["live"])
    stop.set()
    await work
    assert [] == await known()
