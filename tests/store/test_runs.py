"""
The last run of each pipeline is remembered, and shown at a glance.
"""

from __future__ import annotations

from duly.glance import glance, stats_document
from duly.runs import Runs
from duly.views import Views


async def test_the_last_run_of_each_pipeline_is_shown(store):
    runs = Runs(store)
    assert [] == await runs.all()
    await runs.note("schedule", seconds=1.5, counts={"new": 1})
    await runs.note("schedule", seconds=2.0004, counts={"new": 0, "kept": 1})
    await runs.note("history", seconds=1, counts={}, error="x" * 1_000)
    history, schedule = await runs.all()
    assert ("schedule", 2.0, {"new": 0, "kept": 1}, None) == (
        *(schedule.name, schedule.seconds, schedule.counts, schedule.error),
    )
    assert ("history", "x" * 500) == (history.name, history.error)
    assert [history, schedule] == stats_document(await glance(store, Views(store))).runs
