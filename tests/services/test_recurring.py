"""
A job that plans its next run: each way that docs/how-to/recurring-jobs.md warns of does what is said there.
"""

from __future__ import annotations

import asyncio

from duly import Bury, JobState
from tests.eventually import eventually
from tests.services.conftest import becomes, working


async def waiting(app, topic="report"):
    """
    The ids of the runs that are planned.
    """
    views = await app.views()
    return [
        job.id for state in (JobState.scheduled, JobState.ready) async for job in views.each(state, topic)
    ]


async def test_a_fixed_id_is_taken_by_the_run_itself_and_the_chain_ends_without_an_error(app):
    planned = []

    @app.handler("report")
    async def report() -> None:
        planned.append(await app.enqueue(report.job(), id="report", delay=0.01))

    first = await app.enqueue(report.job(), id="report")
    async with working(app):
        await becomes(first, "succeeded")
        assert [False] == [handle.created for handle in planned]
        # Nor after its end, while the ended job is kept.
        assert not (await app.enqueue(report.job(), id="report")).created
        assert [] == await waiting(app)
    assert 1 == len(planned)


async def test_a_run_that_replaces_its_own_id_is_stopped_and_its_outcome_does_not_count(app):
    steps = []

    @app.on_success
    async def told(job, *_):
        steps.append("success")

    @app.handler("report")
    async def report() -> str:
        steps.append("begun")
        try:
            await app.enqueue(report.job(), id="report", on_conflict="replace", delay=3600)
            await asyncio.sleep(60)
            steps.append("went on")
        except asyncio.CancelledError:
            steps.append("stopped")
            raise
        return "figures"

    first = await app.enqueue(report.job(), id="report")
    async with working(app):
        await eventually(lambda: "stopped" in steps)
    assert ["begun", "stopped"] == steps
    job = await app.job(*first.key).get()
    assert (JobState.scheduled, 0, first.placed.revision < job.revision) == (job.state, job.attempts, True)
    assert ["report"] == await waiting(app)


async def test_with_numbered_ids_one_run_that_dies_ends_the_chain(app):
    runs = []

    @app.handler("report")
    async def report(number: int) -> None:
        runs.append(number)
        if number == 3:
            raise Bury("no figures for this one")
        await app.enqueue(report.job(number + 1), id=f"report-{number + 1}", delay=0.01)

    await app.enqueue(report.job(1), id="report-1")
    async with working(app):
        third = app.job("report", "report-3")
        await eventually(lambda: 3 in runs)
        await becomes(third, "dead")
        assert [] == await waiting(app)
    assert [1, 2, 3] == runs
