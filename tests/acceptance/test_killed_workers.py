"""
Workers that are killed, stopped or poisoned: nothing is lost, nothing ends twice, and innocents live.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import pytest

from duly.job import JobKey, JobState
from duly.newjob import Limits, new_job
from tests.acceptance.harness import gone, result_of, seeded, until
from tests.acceptance.mixed import SUCCEEDED, Mixed

if TYPE_CHECKING:
    from tests.acceptance.harness import Rig

SOON_MS = 4_000  #: far from half a minute, and no busy machine takes so long


async def test_random_kills_of_workers_lose_nothing_and_complete_each_job_once(start_rig, size):
    rig, chance = await start_rig(), seeded()
    await rig.age()
    await rig.start_workers(4)
    mixed = Mixed(rig.app, chance, spread_s=5.0 * (size / 500) ** 0.5, topics="loop loop loop thread process")
    sending = asyncio.create_task(mixed.send(size))
    kills = 0
    while not sending.done() or kills < 8:
        await asyncio.sleep(chance.uniform(0.1, 0.5))
        # Those that work already: a process that is still importing holds nothing.
        working = [worker for worker in rig.live_workers if "working on" in worker.said()]
        if working:
            chance.choice(working).kill()
            kills += 1
            rig.start_worker()
    await sending
    await rig.all_ended(within_s=80 * size / 500)

    mixed.check(await rig.check_each_ended_once(mixed.expected))
    crashes = sum(event.reason == "crashed" for event in await rig.events())
    print(f"{kills} kills, {crashes} crashes of {size} jobs")
    assert crashes, "no kill met a running job: the test showed nothing"


async def test_a_worker_frozen_past_its_lease_cannot_finish_late(start_rig):
    rig = await start_rig(lease="3s")
    await rig.age(5)
    [frozen] = await rig.start_workers(1)
    is_frozen = rig.dir / "frozen"
    for number in range(8):
        for topic in ("loop", "thread"):
            await rig.app.enqueue(topic, {"until": str(is_frozen)}, id=f"j{number}")
    await rig.ledger.wait_for("started", 16)
    frozen.send(signal.SIGSTOP)
    is_frozen.touch()
    held = rig.ledger.read("started")
    await rig.start_workers(1)
    await rig.all_ended(within_s=60)
    frozen.send(signal.SIGCONT)
    # Whatever it still finishes has a token of old.
    await until(lambda: "lost the lease on" in frozen.said(), 30, "the thawed worker is told")
    await rig.ledger.wait_for("finished", 16 + 8)  # its threads cannot be stopped: they finish, too late

    expected = {JobKey(topic, f"j{number}"): SUCCEEDED for topic in ("loop", "thread") for number in range(8)}
    jobs = await rig.check_each_ended_once(expected)
    for line in held:
        job = jobs[JobKey(line.topic, line.id)]
        assert line.token != result_of(job)["token"], "the late finish counted"
        assert 1 == job.crashes
    assert frozen.alive, frozen.said()


async def test_after_a_killed_timer_the_next_jobs_are_at_most_100_ms_late(start_rig):
    # Nothing is found by polling: scans and blocks are half a minute apart.
    rig = await start_rig(lease="2s", timer_scan="30s", block="30s", stall="120s")
    await rig.start_workers(3)
    while len(await rig.timers()) < 3:
        # Whoever started slowly may have the place of another: at a due time all of them look.
        await rig.app.enqueue("loop", {}, delay=0.1)
        await asyncio.sleep(0.3)
    # Both stand-bys are relied on in turn: the second has nobody beside it.
    for turn in range(2):
        # Due in steps of 100 ms, all after the kill.
        handles = [
            await rig.app.enqueue("loop", {}, id=f"t{turn}-{step}", delay=0.6 + step / 10)
            for step in range(20)
        ]
        first_due_ms = min(handle.placed.due_ms for handle in handles)
        await asyncio.sleep(max(0, first_due_ms / 1000 - 0.03 - time.time()))
        (await rig.timers())[0].kill()
        killed_ms = time.time_ns() // 1_000_000
        # On a busy machine the kill itself may come late: what was due before it proves nothing.
        mine = {handle.id for handle in handles if handle.placed.due_ms > killed_ms}
        assert len(mine) >= 5
        await until(lambda ids=mine: ids <= late_ms(rig).keys(), 60, "each of them starts")
        late = [late_ms(rig)[id_] for id_ in mine]
        print(f"after a killed timer, {median(late)} ms late, at most {max(late)} ms")
        assert 0 <= min(late)
        # A busy machine makes one or the other wait, but not most of them.
        assert 100 >= median(late)
        # Without stand-bys they are a scan late.
        assert SOON_MS > max(late)


def late_ms(rig: Rig) -> dict[str, int]:
    """
    How late each job was started for the first time.
    """
    return {line.id: line.late_ms for line in reversed(rig.ledger.read("started"))}


async def supervise(rig: Rig, count: int, workers: int, within_s: float) -> None:
    """
    Start anew whatever worker dies, until so many jobs have ended.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for _ in range(workers - len(rig.live_workers)):
            rig.start_worker()
        counts = await rig.counts()
        if counts["dead"] + counts["succeeded"] == count:
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("poison", ["poison", "thread-poison"])
async def test_one_poison_job_is_buried_and_its_99_innocent_neighbours_are_not(start_rig, poison):
    rig = await start_rig(lease="3s", concurrency="100")
    await rig.age(7)
    # All are there before any worker is, so that the first claims them together.
    await rig.app.enqueue(poison, {"ms": 50}, id="poison")
    for number in range(99):
        await rig.app.enqueue("innocent", {"ms": 100}, id=f"i{number}")
    [first] = await rig.start_workers(1)
    await first.exit_code()
    crashed_ms = time.time_ns() // 1_000_000
    await supervise(rig, 100, 3, within_s=100)

    lines = rig.ledger.read()
    expected = {JobKey("innocent", f"i{number}"): SUCCEEDED for number in range(99)}
    jobs = await rig.check_each_ended_once(expected | {JobKey(poison, "poison"): {JobState.dead}})
    dead = jobs[JobKey(poison, "poison")]
    # In a process of its own its death is seen at once: an outcome of that run, and no lost lease.
    assert ((3, 0) if poison == "poison" else (2, 1)) == (dead.crashes, dead.attempts)
    assert b'"crashed"' in dead.outcome
    assert 3 == sum(line.topic == poison for line in rig.ledger.read("started"))
    crashes = [job.crashes for key, job in jobs.items() if key.topic == "innocent" and job.crashes]
    took_s = (max(line.at_ms for line in lines if line.word == "finished") - crashed_ms) / 1000
    print(f"{len(crashes)} innocents crashed, {max(crashes)} times at most; all ended {took_s:.1f} s later")
    assert len(crashes) > 50, "hardly any ran beside the poison: the test showed nothing"
    # Some 8 s where nothing else runs; one after the other, it was minutes.
    assert took_s < 20


@pytest.mark.parametrize(("count", "ms", "free"), [(1000, 600_000, 500), (24, 4_000, 40)])
async def test_the_jobs_of_a_lost_node_start_again_together_on_the_survivors(start_rig, count, ms, free):
    rig = await start_rig(lease="3s")
    await rig.age(7)
    [lost] = await rig.start_workers(1, concurrency=str(count))
    jobs = [new_job("innocent", {"ms": ms}, Limits()).options(id=f"i{number}") for number in range(count)]
    await rig.app.enqueue_many(jobs)
    await rig.ledger.wait_for("started", count)
    survivors = await rig.start_workers(2, concurrency=str(free))
    lost.kill()
    killed_ms = time.time_ns() // 1_000_000
    lines = await rig.ledger.wait_for("started", 2 * count, within_s=25)

    again = [line for line in lines if line.pid != lost.pid]
    took_s = (max(line.at_ms for line in again) - killed_ms) / 1000
    by_worker = Counter(line.pid for line in again)
    print(f"{count} jobs started again within {took_s:.1f} s, {sorted(by_worker.values())} each")
    assert count == len({line.id for line in again})
    # Within the lease of 3 s and 5 s more; one after the other, it was a minute.
    assert took_s < 3 + 5
    assert by_worker.keys() == {worker.pid for worker in survivors}
    assert min(by_worker.values()) >= count / 4
    if ms < 10_000:
        await rig.all_ended()
        jobs = await rig.jobs([JobKey("innocent", f"i{number}") for number in range(count)])
        assert {(JobState.succeeded, 1)} == {(job.state, job.crashes) for job in jobs}
    assert 0 == (await rig.counts())["dead"]


async def test_the_children_of_a_killed_worker_do_not_outlive_it(start_rig):
    rig = await start_rig()
    [worker] = await rig.start_workers(1)
    await rig.app.enqueue("process", {"ms": 60_000}, id="a")
    [line] = await rig.ledger.wait_for("started")
    assert worker.pid != line.pid
    worker.kill()
    await until(lambda: gone(line.pid), 10, "the child ends")


async def test_a_worker_whose_loop_is_frozen_ends_and_others_take_over(start_rig):
    rig = await start_rig(stall="3s")
    await rig.age()
    [worker] = await rig.start_workers(1)
    await rig.app.enqueue("freeze", {}, id="frozen")
    await rig.app.enqueue("loop", {"ms": 100}, id="innocent", delay=1)
    assert 70 == await worker.exit_code()
    assert "no progress in" in worker.said()
    await supervise(rig, 2, 1, within_s=60)
    jobs = await rig.jobs([JobKey("freeze", "frozen"), JobKey("loop", "innocent")])
    # It froze three workers, the last of them alone.
    assert (JobState.dead, 3) == (jobs[0].state, jobs[0].crashes)
    assert JobState.succeeded is jobs[1].state


@pytest.mark.parametrize("topic", ["deaf", "stubborn"], ids=["threads", "async"])
async def test_a_worker_with_handlers_that_will_not_stop_starts_itself_anew(start_rig, topic):
    rig = await start_rig(drain_grace="500ms")
    [worker] = await rig.start_workers(1)
    for number in range(8):
        await rig.app.enqueue(topic, {}, id=f"d{number}")
    await until(lambda: worker.said().count("working on") == 2, 20, "the worker starts anew")
    assert worker.alive
    await rig.app.enqueue("thread", {}, id="after")
    await rig.all_ended()
    jobs = await rig.jobs([*(JobKey(topic, f"d{number}") for number in range(8)), JobKey("thread", "after")])
    assert [(JobState.dead, 1, 0)] * 8 + [(JobState.succeeded, 1, 0)] == [
        (job.state, job.attempts, job.crashes) for job in jobs
    ]
