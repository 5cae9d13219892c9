"""
An app with a record, whole: promised in the database, run from the queue, remembered in the database.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from duly import Duly, JobNotFound
from duly.job import JobState
from duly.record.reconcile import Reconciler
from duly.select import Selection, select
from duly.settings import Settings
from tests.eventually import eventually
from tests.record.kit import read_rows
from tests.record.working import working
from tests.shards import on_all


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    app = Duly(valkey.url, namespace=namespace, record=migrated_url, horizon="1m")
    app.ran = []

    @app.handler("mail")
    async def mail(to: str) -> str:
        app.ran.append(to)
        if to == "nobody":
            raise ValueError("there is no such person")
        return f"sent to {to}"

    app.mail = mail
    yield app
    await app.aclose()


async def rows_of(app):
    return await read_rows((await app.record()).database)


async def test_a_job_is_promised_run_and_remembered(app):
    job = await app.enqueue(app.mail.job("ann"), id="a")
    assert JobState.scheduled == (await rows_of(app))["a"].state
    async with working(app):
        assert "sent to ann" == await job.result(timeout=30)

        async def remembered():
            return (await rows_of(app))["a"].state == JobState.succeeded

        await eventually(remembered)
    row = (await rows_of(app))["a"]
    assert (b'"sent to ann"', 1) == (row.outcome, row.attempts)
    assert row.ended_ms >= row.due_ms


async def test_near_and_far_jobs_are_found_moved_and_run(app):
    """
    One due in three years and one due in three seconds, with a horizon of a minute.
    """
    far_at = datetime.now(UTC) + timedelta(days=3 * 365)
    store = await app.store()
    far = await app.enqueue(app.mail.job("far"), id="far", due_at=far_at)
    near = await app.enqueue(app.mail.job("near"), id="near", delay=3)
    assert 1 == sum(await on_all(store, "jobs", "HLEN"))
    views = await app.views()
    listed = [job.key async for job in views.each(JobState.scheduled, "mail")]
    assert sorted([near.key, far.key]) == sorted(listed)
    assert store.shards > 1 or [near.key, far.key] == listed, "each shard is listed by itself"
    assert far_at.replace(microsecond=0) == (await far.get()).due_at.replace(microsecond=0)

    other = await app.enqueue(app.mail.job("other"), id="other", due_at=far_at)
    assert JobState.cancelled is await other.cancel()
    assert JobState.cancelled is (await other.get()).state

    async with working(app):
        assert "sent to near" == await near.result(timeout=30)
        moved = await far.reschedule(delay=2)
        assert "sent to far" == await far.result(timeout=30)
    job = await far.get()
    assert job.started_ms >= moved.due_ms
    assert ["near", "far"] == app.ran


async def test_a_job_that_moves_beyond_the_horizon_does_not_run_at_its_old_time(app):
    job = await app.enqueue(app.mail.job("ann"), id="a", delay=1)
    await job.reschedule(due_at=datetime.now(UTC) + timedelta(days=30))
    last = await app.enqueue(app.mail.job("last"), delay=2)
    async with working(app):
        await last.result(timeout=30)
    assert ["last"] == app.ran


async def test_an_emptied_queue_loses_nothing(app):
    jobs = [await app.enqueue(app.mail.job(str(number)), id=str(number), delay=1) for number in range(20)]
    store = await app.store()
    await store.link.call("FLUSHALL")
    async with working(app):
        for job in jobs:
            assert f"sent to {job.id}" == await job.result(timeout=60)
    assert sorted(app.ran) == sorted(job.id for job in jobs)


async def test_what_is_dead_is_remembered_and_can_run_again(app):
    job = await app.enqueue(app.mail.job("nobody"), id="a", max_attempts=1)
    async with working(app):

        async def dead():
            return (await rows_of(app))["a"].state == JobState.dead

        await eventually(dead)
        await job.requeue()

        async def again():
            return len(app.ran) == 2 and (await rows_of(app))["a"].state == JobState.dead

        await eventually(again)
    assert b"no such person" in (await rows_of(app))["a"].outcome


async def test_what_is_moved_while_one_looks_is_met_once(app, valkey, namespace):
    """
    Also what was sent before there was a record, whose revisions are numbers of the queue.
    """
    async with Duly(valkey.url, namespace=namespace) as before:
        await before.enqueue("mail", id="before", delay=20)
    await app.enqueue(app.mail.job("near"), id="near", delay=30)
    await app.enqueue(app.mail.job("far"), id="far", delay=3_600)
    views, moved = await app.views(), []
    waiting = Selection((JobState.scheduled, JobState.ready))
    async for part in select(views, waiting, page=1, newest=await views.newest()):
        for job in part.jobs:
            # To where the list has not come yet.
            await app.job(*job.key).reschedule(delay=7_200)
            moved.append(job.id)
        assert len(moved) <= 3
    assert ["before", "far", "near"] == sorted(moved)
    assert app.settings.shards > 1 or ["before", "near", "far"] == moved, "each shard is listed by itself"
    assert [] == [job.id async for part in select(views, waiting, newest=[0, 0]) for job in part.jobs], (
        "all were changed since then"
    )


async def test_a_job_whose_topic_is_purged_is_cancelled_on_both_sides(app):
    await app.enqueue(app.mail.job("near"), id="near", delay=30)
    await app.enqueue(app.mail.job("far"), id="far", due_at=datetime.now(UTC) + timedelta(days=9))
    assert 2 == await app.purge("mail")
    assert {JobState.cancelled} == {row.state for row in (await rows_of(app)).values()}


async def test_after_all_of_it_there_is_nothing_to_reconcile(app):
    await app.enqueue(app.mail.job("near"), id="near")
    await app.enqueue(app.mail.job("far"), id="far", due_at=datetime.now(UTC) + timedelta(days=9))
    async with working(app):
        await app.job("mail", "near").result(timeout=30)
    record = await app.record()
    report = await Reconciler(record.database, record.store, apply=False, generation=1).run()
    assert not report.found


async def test_a_worker_without_the_record_is_refused(app, valkey, namespace, shards):
    await app.record()
    other = Duly(settings=Settings(url=valkey.url, namespace=namespace, shards=shards))
    other.handlers.add(app.handlers.get("mail"))
    with pytest.raises(Exception, match="has a record"):
        await asyncio.wait_for(other.work(), 30)
    await other.aclose()


async def test_an_unknown_job_is_unknown_to_both(app):
    with pytest.raises(JobNotFound):
        await app.job("mail", "nobody-sent-it").get()
