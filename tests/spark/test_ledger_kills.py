"""
The ledger of a run in which workers were killed: real processes, their events, the table made of them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from duly.cli.main import main
from tests.acceptance.harness import ENDINGS, Rig, seeded
from tests.acceptance.mixed import Mixed

pytestmark = pytest.mark.timeout(600)
JOBS, LATER, KILLS = 200, 7, 5


async def work_and_kill(rig: Rig) -> list[str]:
    """
    Let workers run mixed jobs and kill some of them; the ids that were sent.
    """
    await rig.age()
    await rig.start_workers(2)
    for number in range(LATER):
        await rig.app.enqueue("loop", {}, id=f"later{number}", delay=3600)
    chance = seeded()
    mixed = Mixed(rig.app, chance, spread_s=3.0)
    sending = asyncio.create_task(mixed.send(JOBS))
    killed = 0
    while killed < KILLS:
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        running = (await rig.counts())["running"]
        working = [worker for worker in rig.live_workers if "working on" in worker.said()]
        if working and running:
            chance.choice(working).kill()
            killed += 1
            rig.start_worker()
    await sending
    await ended(rig)
    return [f"{key.topic}/{key.id}" for key in mixed.expected]


async def ended(rig: Rig) -> None:
    async with asyncio.timeout(200):
        while True:
            counts = await rig.counts()
            if (LATER, 0, 0) == (counts["scheduled"], counts["ready"], counts["running"]):
                return
            await asyncio.sleep(0.05)


def test_the_ledger_balances_to_the_job_although_workers_were_killed(spark, capsys, tmp_path):
    table = str(tmp_path / "history")
    with asyncio.Runner() as loop:
        rig = loop.run(Rig.start())
        try:
            sent = loop.run(work_and_kill(rig))
            events = loop.run(rig.events())
            assert 0 == main(["pipeline", "history", "--once", "--table", table, "--url", rig.server.url])
        finally:
            loop.run(rig.close())
    capsys.readouterr()
    code = main(["pipeline", "ledger", "--table", table, "--json"])
    book = json.loads(capsys.readouterr().out)
    assert (0, True, []) == (code, book["balanced"], book["gaps"])
    assert JOBS == len(sent)
    assert any(event.reason == "crashed" for event in events), "no kill met a running job: nothing was shown"

    endings = Counter(ENDINGS[event.verb].name for event in events if event.verb in ENDINGS)
    totals = book["totals"]
    assert (0, 0, LATER) == (totals["difference"], totals["earlier"], totals["open"])
    # A job that was replaced after its end was accepted twice, and ended twice.
    assert totals["accepted"] == endings.total() + LATER >= JOBS + LATER
    assert endings == Counter(
        {name: totals[name] for name in ("succeeded", "dead", "cancelled") if totals[name]}
    )
