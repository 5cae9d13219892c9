"""
Jobs that have to run isolated: in a process of their own where the handler allows it, else alone on a worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import msgspec
import pytest

from duly import JobFailed
from duly.handlers import Handlers
from duly.ids import new_request
from duly.job import JobKey, JobState, Order
from duly.services.running import APART, Run, Running
from duly.store import Promise, Want
from tests.services import processes
from tests.services.conftest import tally, working
from tests.shards import claim_all

LONG_S = 100  #: children import what they need, many at once on a busy machine


async def to_isolate(app, topic, *payloads, crashes=2):
    """
    Jobs with crashes behind them.
    """
    store = await app.store()
    orders = [
        Order(JobKey(topic, f"j{at}"), msgspec.json.encode(payload), due_ms=time.time_ns() // 1_000_000)
        for at, payload in enumerate(payloads)
    ]
    await store.hydrate([Promise(order, 1, new_request(), crashes=crashes) for order in orders])
    return [app.job(*order.key) for order in orders]


def test_a_handler_isolates_where_a_new_process_finds_its_function_and_nothing_forbids_it():
    found = {
        handler.topic: handler.isolates
        for handler in (
            *(processes.square, processes.lone, processes.staying),
            *(processes.awaited, processes.decorated, processes.renamed),
        )
    }
    apart = {"square", "lone"}
    assert {topic: topic in apart for topic in found} == found


def test_a_function_within_another_does_not_isolate(app):
    @app.handler("inner")
    def inner() -> None: ...

    assert not inner.isolates


@pytest.mark.parametrize(
    ("program", "isolates"),
    [
        ("import tests.services.processes as p; print(p.lone.isolates)", False),
        ("import tests.services.processes as p\nif __name__ == '__main__': print(p.lone.isolates)", True),
    ],
)
def test_nothing_isolates_where_a_new_process_would_run_the_program_again(tmp_path, program, isolates):
    (tmp_path / "program.py").write_text(program)
    said = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(isolates) == said.stdout.strip()


async def test_isolated_jobs_of_a_plain_function_run_side_by_side_in_processes_of_their_own(app, tmp_path):
    app.handlers.add(processes.lone)
    jobs = await to_isolate(app, "lone", *[{"how": "meet", "path": str(tmp_path)}] * 3)
    async with working(app):
        pids = {await job.result(timeout=LONG_S) for job in jobs}
        assert 3 == len(pids - {os.getpid()})
        # Nobody keeps them: other jobs of that function run in threads.
        fresh = await app.enqueue(processes.lone.job("run"))
        assert os.getpid() == await fresh.result(timeout=LONG_S)


async def test_a_suspect_runs_in_a_thread_as_ever(app):
    app.handlers.add(processes.lone)
    [job] = await to_isolate(app, "lone", {"how": "run"}, crashes=1)
    async with working(app):
        assert os.getpid() == await job.result(timeout=LONG_S)


@pytest.mark.parametrize("handler", [processes.staying, processes.awaited, processes.decorated])
async def test_an_isolated_job_that_may_not_leave_runs_alone_on_its_worker(app, handler):
    app.handlers.add(handler)
    [job] = await to_isolate(app, handler.topic, {})
    async with working(app):
        assert os.getpid() == await job.result(timeout=LONG_S)


@pytest.mark.parametrize(("handler", "how"), [(processes.lone, "die"), (processes.end, "exit")])
async def test_an_isolated_job_whose_process_dies_is_buried_as_crashed_at_once(app, handler, how):
    app.handlers.add(handler)
    [job] = await to_isolate(app, handler.topic, {"how": how})
    async with working(app):
        with pytest.raises(
            JobFailed, match="crashed: the child process ended with exit code 3, after 2 crashes"
        ):
            await job.result(timeout=LONG_S)
        # The worker goes on.
        fresh = await app.enqueue(handler.job("run"))
        await fresh.result(timeout=LONG_S)
    assert ("dead", 2) == (await tally(job))[::2]


async def test_an_isolated_job_that_fails_in_its_process_has_failed_once_and_is_cleared(app):
    app.handlers.add(processes.lone)
    [job] = await to_isolate(app, "lone", {"how": "raise"})
    async with working(app):
        assert os.getpid() == await job.result(timeout=LONG_S)
    assert ("succeeded", 2, 0) == await tally(job)


async def test_a_process_that_does_not_start_is_not_held_against_its_job(app, monkeypatch):
    handler = Handlers().handler("lone", max_attempts=1)(processes.lone.fn)
    monkeypatch.setattr(processes, "lone", handler)
    assert handler.isolates
    # There it is not found: in a new process the module is another.
    handler.fn.__qualname__, name = "nowhere", handler.fn.__qualname__
    app.handlers.add(handler)
    try:
        [job] = await to_isolate(app, "lone", {"how": "run"})
        async with working(app):
            assert os.getpid() == await job.result(timeout=LONG_S)
    finally:
        handler.fn.__qualname__ = name
    assert not handler.isolates
    assert ("succeeded", 1, 2) == await tally(job)


async def test_a_worker_starts_only_so_many_processes_that_nobody_asked_for(app):
    running = Running(100)
    jobs = await to_isolate(app, "lone", *[{}] * (APART + 3))
    store = await app.store()

    async def claim():
        runs = []
        for shard in range(store.shards):
            # As a worker does: the slots that jobs of one shard took are not free for those of the next.
            wants = running.wants([processes.lone])
            claimed = await store.claim(shard, wants, worker="w", limit=100, alone=False)
            for lease in claimed.leases:
                runs.append(Run(lease, processes.lone, 0.0))
                running.begin(runs[-1])
        return runs

    runs = await claim()
    assert APART == len(runs)
    assert [] == await claim()
    running.free_slot(runs[0])
    assert 1 == len(await claim())
    assert len(jobs) - APART - 1 == sum([(await job.get()).state is JobState.ready for job in jobs])


async def test_a_worker_asks_for_nothing_while_a_job_runs_alone_on_it(app):
    running = Running(4)
    await to_isolate(app, "staying", {})
    [lease] = await claim_all(await app.store(), running.wants([processes.staying]), worker="w")
    run = Run(lease, processes.staying, 0.0)
    running.begin(run)
    assert [] == running.wants([processes.square])
    running.free_slot(run)
    assert [Want("square", 4, 300_000, 4), Want("staying", 4, 300_000, None)] == running.wants(
        [processes.square, processes.staying]
    )
