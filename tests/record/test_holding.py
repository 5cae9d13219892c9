"""
A job that is cancelled or rescheduled just when it would start does one of the two, never both.
"""

from __future__ import annotations

import pytest

from duly import Duly
from duly.errors import Conflict, RecordUnavailable
from duly.job import JobKey, JobState
from duly.record.holding import HOLD_MS
from duly.views import Views
from tests.eventually import eventually
from tests.shards import fixed_of, promote_all
from tests.store.kit import claim

A = JobKey("mail", "a")


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:
        yield app


class Turn:
    """
    Lets something happen to the store in the moment before a row is changed.
    """

    def __init__(self, record):
        self.store, self._write, self.before = record.store, record.database.write, None
        record.database.write = self._after

    async def _after(self, work, **options):
        if self.before:
            before, self.before = self.before, None
            await before()
        return await self._write(work, **options)


@pytest.fixture
async def turn(app):
    return Turn(await app.record())


@pytest.fixture
async def job(app, turn):
    """
    A job that anybody may begin.
    """
    job = await app.enqueue("mail", 1, id="a")

    async def ready():
        await promote_all(turn.store)
        assert JobState.ready is (await Views(turn.store).get(A)).state

    await eventually(ready)
    # The write that a test waits for is not that of the relay.
    await (await app.record()).settle()
    return job


async def test_nobody_begins_a_job_while_it_is_rescheduled(job, turn):
    begun = []

    async def begin():
        await promote_all(turn.store)
        begun.extend(await claim(turn.store))

    turn.before = begin
    moved = await job.reschedule(delay=3_600)
    assert [] == begun
    queued = await Views(turn.store).get(A)
    assert (JobState.scheduled, moved.revision, moved.due_ms) == (
        queued.state,
        queued.revision,
        queued.due_ms,
    )


async def test_a_job_that_runs_is_not_rescheduled_though_it_ends_meanwhile(job, turn):
    [lease] = await claim(turn.store)

    async def end():
        await turn.store.ack(lease, b'"done"')

    turn.before = end
    with pytest.raises(Conflict, match="is running"):
        await job.reschedule(delay=0)
    assert JobState.succeeded is (await job.get()).state
    await promote_all(turn.store)
    assert [] == await claim(turn.store)


async def test_a_job_is_on_time_after_its_reschedule_was_refused(app, turn):
    job = await app.enqueue("mail", 1, id="a", delay=HOLD_MS / 2_000)
    due_ms = (await job.get()).due_ms

    async def refuse():
        held = await Views(turn.store).get(A)
        assert due_ms < held.due_ms
        raise RecordUnavailable("the record cannot be reached: a test")

    turn.before = refuse
    with pytest.raises(RecordUnavailable):
        await job.reschedule(delay=3_600)
    queued = await Views(turn.store).get(A)
    assert (due_ms, job.placed.revision) == (queued.due_ms, queued.revision)


async def test_a_reschedule_that_names_another_revision_does_not_touch_the_job(job, turn):
    with pytest.raises(Conflict):
        await job.reschedule(delay=3_600, revision=job.placed.revision + 1)
    assert JobState.ready is (await Views(turn.store).get(A)).state


async def test_nobody_begins_a_job_while_it_is_cancelled(job, turn):
    begun = []

    async def begin():
        begun.extend(await claim(turn.store))

    turn.before = begin
    assert JobState.cancelled is await job.cancel()
    assert [] == begun
    ended = await job.get()
    assert (JobState.cancelled, job.placed.revision) == (ended.state, ended.revision)


async def test_a_job_that_ends_before_it_is_cancelled_is_told_as_it_ended(job, turn, monkeypatch):
    [lease] = await claim(turn.store)
    cancel = turn.store.cancel

    async def end_first(keys, **options):
        await turn.store.ack(lease, b'"done"')
        return await cancel(keys, **options)

    monkeypatch.setattr(turn.store, "cancel", end_first)
    assert JobState.succeeded is await job.cancel()
    assert (JobState.succeeded, b'"done"') == ((found := await job.get()).state, found.outcome)


async def test_what_is_cancelled_stays_so_though_redis_forgets_it_at_once(job, turn):
    async def forget():
        await turn.store.link.call("HDEL", fixed_of(turn.store, *A)["jobs"], A.member)

    turn.before = forget
    assert JobState.cancelled is await job.cancel()
    assert JobState.cancelled is (await job.get()).state


async def test_a_run_that_is_cancelled_without_its_record_is_stopped_all_the_same(job, turn):
    await claim(turn.store)

    async def refuse():
        raise RecordUnavailable("the record cannot be reached: a test")

    turn.before = refuse
    with pytest.raises(RecordUnavailable):
        await job.cancel()
    assert JobState.cancelled is (await Views(turn.store).get(A)).state
    assert JobState.cancelled is await job.cancel()
