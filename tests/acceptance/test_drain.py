"""
SIGTERM: stop claiming, finish what can be finished, give back the rest, count nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import pytest

from duly.cli.draining import STALLED
from duly.events import Verb
from duly.job import JobKey, JobState
from tests.acceptance.harness import seeded, until
from tests.acceptance.mixed import SUCCEEDED
from tests.services.conftest import becomes


async def test_deploys_under_load_count_nothing_against_any_job(start_rig, size):
    rig, chance = await start_rig(drain_grace="200ms", lease="15s"), seeded()
    await rig.start_workers(2)
    expected = {}
    for number in range(size):
        # Few in processes: each worker starts its own.
        topic = chance.choice(["loop", "thread", "process"] if number % 10 == 0 else ["loop", "thread"])
        key = JobKey(topic, f"j{number}")
        # Some take longer than the grace: they are given back.
        payload = {"ms": chance.choice([0, 20, 150, 800])}
        await rig.app.enqueue(topic, payload, id=key.id, delay=chance.uniform(0, 4 * size / 500))
        expected[key] = SUCCEEDED
    deploys = 0
    while deploys < 4 or (await rig.counts())["scheduled"]:
        old = chance.choice(rig.live_workers)
        await rig.start_workers(1)
        await asyncio.sleep(chance.uniform(0, 0.3))
        old.send(signal.SIGTERM)
        assert 0 == await old.exit_code(), old.said()
        deploys += 1
    await rig.all_ended(within_s=60 * size / 500)

    jobs = await rig.check_each_ended_once(expected)
    verbs = Counter(event.verb for event in await rig.events())
    print(f"{deploys} deploys, {verbs[Verb.released]} jobs given back of {size}")
    assert 0 == verbs[Verb.recovered], "somebody left without giving back"
    assert {(1, 0)} == {(job.attempts, job.crashes) for job in jobs.values()}


async def test_sigterm_finishes_what_fits_into_the_grace_and_claims_no_more(start_rig):
    rig = await start_rig(concurrency="4", drain_grace="60s", lease="15s")
    [worker] = await rig.start_workers(1)
    is_draining = rig.dir / "draining"
    for number in range(12):
        await rig.app.enqueue("loop", {"until": str(is_draining)}, id=f"j{number}")
    await rig.ledger.wait_for("started", 4)
    worker.send(signal.SIGTERM)
    await until(lambda: "draining" in worker.said(), 20, "the worker drains")
    is_draining.touch()
    assert 0 == await worker.exit_code()
    assert (4, 4) == (len(rig.ledger.read("started")), len(rig.ledger.read("finished")))
    counts = await rig.counts()
    assert (4, 8) == (counts["succeeded"], counts["ready"])
    assert "drained" in worker.said()


async def test_a_second_signal_gives_everything_back_at_once(start_rig):
    # Neither the jobs nor the grace end within minutes.
    rig = await start_rig(concurrency="4", drain_grace="10m", lease="15s")
    [worker] = await rig.start_workers(1)
    for topic in ("loop", "thread"):
        for number in range(2):
            await rig.app.enqueue(topic, {"ms": 600_000}, id=f"j{number}")
    await rig.ledger.wait_for("started", 4)
    worker.send(signal.SIGTERM)
    await until(lambda: "draining" in worker.said(), 20, "the worker drains")
    assert worker.alive
    worker.send(signal.SIGTERM)
    assert 0 == await worker.exit_code()
    assert 4 == (await rig.counts())["ready"]
    jobs = await rig.jobs([JobKey(topic, f"j{number}") for topic in ("loop", "thread") for number in (0, 1)])
    assert {(0, 0)} == {(job.attempts, job.crashes) for job in jobs}


async def test_ctrl_c_reaches_child_processes_too_and_they_finish_all_the_same(start_rig):
    rig = await start_rig(lease="15s")
    [worker] = await rig.start_workers(1)
    await rig.app.enqueue("process", {"ms": 700}, id="a")
    await rig.ledger.wait_for("started")
    os.killpg(worker.pid, signal.SIGINT)
    assert 0 == await worker.exit_code(), worker.said()
    [job] = await rig.jobs([JobKey("process", "a")])
    assert (JobState.succeeded, 1, 0) == (job.state, job.attempts, job.crashes)


async def test_a_handler_that_exits_fails_alone_and_a_signal_still_drains(start_rig):
    rig = await start_rig(drain_grace="60s")
    [worker] = await rig.start_workers(1)
    is_draining = rig.dir / "draining"
    await rig.app.enqueue("loop", {"until": str(is_draining)}, id="neighbour")
    await rig.ledger.wait_for("started")
    ways = ("itself", "task", "group", "gather", "callback")
    for how in ways:
        await rig.app.enqueue("exit", {"how": how}, id=how)
    for how in ways:
        await becomes(rig.app.job("exit", how), "succeeded" if how == "callback" else "dead", 30)
    # Two at once may be told as one.
    assert 1 <= worker.said().count("the worker goes on") <= 4
    worker.send(signal.SIGTERM)
    await until(lambda: "draining" in worker.said(), 20, "the worker drains")
    is_draining.touch()
    assert 0 == await worker.exit_code()
    assert "drained" in worker.said()

    jobs = await rig.jobs([JobKey("loop", "neighbour"), *(JobKey("exit", how) for how in ways)])
    assert {(1, 0)} == {(job.attempts, job.crashes) for job in jobs}
    done, dead = JobState.succeeded, JobState.dead
    assert [done, dead, dead, dead, dead, done] == [job.state for job in jobs]
    for job in jobs[1:5]:
        assert b'{"type":"SystemExit","message":"enough"}' == job.outcome


async def test_a_handler_that_stops_the_event_loop_costs_nobody_anything(start_rig):
    rig = await start_rig(drain_grace="60s")
    [worker] = await rig.start_workers(1)
    is_draining = rig.dir / "draining"
    await rig.app.enqueue("loop", {"until": str(is_draining)}, id="neighbour")
    await rig.ledger.wait_for("started")
    await rig.app.enqueue("stop-loop", id="a")
    await becomes(rig.app.job("stop-loop", "a"), "succeeded", 30)
    assert 1 == worker.said().count("a handler stopped the event loop; the worker goes on")
    worker.send(signal.SIGTERM)
    await until(lambda: "draining" in worker.said(), 20, "the worker drains")
    is_draining.touch()
    assert 0 == await worker.exit_code()
    jobs = await rig.jobs([JobKey("loop", "neighbour"), JobKey("stop-loop", "a")])
    assert {(JobState.succeeded, 1, 0)} == {(job.state, job.attempts, job.crashes) for job in jobs}


async def test_a_handler_that_cancels_every_task_crashes_its_worker_and_is_counted(start_rig):
    rig = await start_rig(lease="1s")
    await rig.age()
    [worker] = await rig.start_workers(1)
    await rig.app.enqueue("cancel-all", id="a")
    assert STALLED == await worker.exit_code(), worker.said()
    assert "a handler cancelled tasks of its worker" in worker.said()
    await rig.start_workers(1)
    await rig.ledger.wait_for("started", 2)
    [job] = await rig.jobs([JobKey("cancel-all", "a")])
    assert (0, 1) == (job.attempts, job.crashes)


@pytest.mark.parametrize("catches", ["cancel", "everything"])
async def test_a_worker_drains_although_a_handler_does_not_stop(start_rig, catches):
    rig = await start_rig(drain_grace="200ms")
    [worker] = await rig.start_workers(1)
    await rig.app.enqueue("stubborn", {"catches": catches}, id="a", ttr=600)
    await rig.ledger.wait_for("started")
    worker.send(signal.SIGTERM)
    assert 0 == await worker.exit_code()
    assert "drained" in worker.said()
    [job] = await rig.jobs([JobKey("stubborn", "a")])
    assert (JobState.ready, 0, 0) == (job.state, job.attempts, job.crashes)
