"""
Connections cut or silent before, inside and after requests and replies: one job, one outcome each.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Duly
from duly.events import Verb
from duly.job import JobKey
from tests.acceptance.harness import seeded
from tests.acceptance.mixed import SUCCEEDED, patiently
from tests.acceptance.wire import CUTS, SILENCES, Wire


async def test_a_sender_on_a_bad_wire_makes_one_job_and_one_revision_each(start_rig, size):
    rig, chance = await start_rig(), seeded()
    wire = await Wire(rig.server.socket, chance, share=0.15).start()
    app = Duly(wire.url)
    try:

        async def send(number: int) -> None:
            await patiently(app.enqueue, "loop", {"version": 1}, id=f"j{number}")
            # Replaced, moved and cancelled over the same wire: each once.
            if number % 5 == 1:
                await patiently(app.enqueue, "loop", {"version": 2}, id=f"j{number}", on_conflict="replace")
            if number % 5 == 2:
                await patiently(app.job("loop", f"j{number}").reschedule, delay=0)

        for first in range(0, size, 20):
            await asyncio.gather(*(send(number) for number in range(first, min(first + 20, size))))
    finally:
        await app.aclose()
        await wire.close()
    assert set(CUTS) == set(wire.cuts), wire.cuts
    print(f"{wire.cuts.total()} cuts for {size} jobs")

    verbs: dict[str, list[Verb]] = {}
    for event in await rig.events():
        verbs.setdefault(event.id, []).append(event.verb)
    assert size == len(verbs)
    for number in range(size):
        more = {1: [Verb.replaced], 2: [Verb.rescheduled]}.get(number % 5, [])
        found = [verb for verb in verbs[f"j{number}"] if verb is not Verb.promoted]
        assert [Verb.enqueued, *more] == found, number
    await rig.start_workers(1)
    await rig.all_ended()
    await rig.check_each_ended_once({JobKey("loop", f"j{number}"): SUCCEEDED for number in range(size)})


@pytest.mark.parametrize(
    ("share", "ends"), [(0.1, CUTS), (0.04, SILENCES)], ids=["that is cut", "that falls silent"]
)
async def test_workers_on_a_bad_wire_finish_each_job_once(start_rig, size, share, ends):
    rig, chance = await start_rig(lease="15s"), seeded()
    wire = await Wire(rig.server.socket, chance, share=share, ends=ends).start()
    try:
        await rig.start_workers(2, url=wire.url)
        expected = {}
        for number in range(size):
            topic = chance.choice(["loop", "loop", "thread"])
            payload = {"ms": chance.choice([0, 5, 100]), "fail": chance.choice([0, 0, 0, 1])}
            delay = chance.choice([0, chance.uniform(0, 3)])
            await rig.app.enqueue(topic, payload, id=f"j{number}", delay=delay)
            expected[JobKey(topic, f"j{number}")] = SUCCEEDED
        await rig.all_ended(within_s=60 * size / 500)
        jobs = await rig.check_each_ended_once(expected)
    finally:
        for worker in rig.workers:
            worker.kill()
        await wire.close()
    assert wire.cuts.total() > len(ends), wire.cuts
    print(f"{wire.cuts.total()} cuts; {len(rig.ledger.read('started'))} runs of {size} jobs")
    assert {0} == {job.crashes for job in jobs.values()}
