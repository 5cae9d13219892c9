"""
The slots of a worker, and who is told when one is free.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from duly.job import JobKey, Lane, Lease
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
