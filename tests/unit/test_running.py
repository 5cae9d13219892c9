"""
The slots of a worker, and who is told when one is free.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import msgspec
import pytest

from duly.job import JobKey, Lane, Lease
from duly.outcome import Ack
from duly.services.running import Run, Running

HANDLER = SimpleNamespace(topic="mail", concurrency=None, isolates=False, run_in="loop")


def begun(running: Running, count: int) -> list[Run]:
    runs = []
    for number in range(count):
        lease = Lease(
            JobKey("mail", str(number)), 0, Lane.normal, 1, number, bytes(8), 1, 0, 0, 0, 0, 1_000, 0, b""
        )
        runs.append(Run(lease, HANDLER, 0.0))
        running.begin(runs[-1])
    return runs


@pytest.mark.parametrize(("slots", "busy", "news"), [(40, 20, 5), (40, 10, 7), (8, 6, 2), (16, 4, 3)])
async def test_far_more_free_slots_than_a_worker_has_told_are_room(slots, busy, news):
    running = Running(slots)
    runs = begun(running, busy)
    room = running.room()
    for at, run in enumerate(runs, 1):
        running.free_slot(run)
        assert (at >= news) == room.done()


async def test_the_end_of_one_job_is_no_news_to_others():
    running = Running(40)
    [run] = begun(running, 1)
    room = running.room()
    running.free_slot(run)
    assert not room.done()


async def test_the_record_is_told_of_no_run_that_ended_before_it_started(monkeypatch):
    told = []
    running = Running(1)
    running.outcomes = SimpleNamespace(put=told.append)
    [run] = begun(running, 1)
    # Claimed at 5.9 ms by the server's clock, which says 5, and ended 0.4 ms later, at 6.3.
    run.lease = msgspec.structs.replace(run.lease, claimed_ms=5)
    run.outcome, run.verb = Ack(b""), "acked"
    monkeypatch.setattr(time, "monotonic", lambda: run.sent_s + 0.0004)
    running.end(run)
    assert [6] == [ended.ended_ms for ended in told]
