"""
Lists of what is scheduled, on both sides of the horizon, while jobs come across it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from duly import Duly, JobState, UsageError
from duly.record.database import Database
from duly.record.marks import mark
from duly.record.relay import promise_of
from duly.record.rows import JobRow
from duly.record.tables import jobs

NOON = datetime.now(UTC) + timedelta(hours=12)
SECOND = timedelta(seconds=1)


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
async def app(request, valkey, namespace, migrated_url):
    async with Duly(
        valkey.url, namespace=namespace, record=migrated_url, horizon="1m", shards=request.param
    ) as app:
        yield app


@pytest.fixture
async def ids(app):
    """
    Jobs in the order of their due times: five in the queue, twelve in the record, some at the same time, and
    three of the queue again, which were put off.
    """
    near = [f"n{at}" for at in range(5)]
    far = [f"f{at:02}" for at in range(12)]
    late = [f"l{at}" for at in range(3)]
    for at, id_ in enumerate([*near, *late]):
        await app.enqueue("mail", id=id_, delay=40 + at)
    for at, id_ in enumerate(far):
        await app.enqueue("mail", id=id_, due_at=NOON + at // 3 * SECOND)
    for at, id_ in enumerate(late):
        await app.job("mail", id_).reschedule(due_at=NOON + (at + 2) * SECOND)
    await app.enqueue("sms", id="other", delay=30)
    await app.enqueue("sms", id="far", due_at=NOON)
    await (await app.record()).settle()
    return [*near, *far, *late]


async def across(app):
    """
    Bring the next row of the record to the queue, as the relay does when its time is near.
    """
    record = await app.record()
    mine = (jobs.c.namespace == record.store.namespace, jobs.c.relay_ms.is_not(None))
    question = select(jobs).where(*mine).order_by(jobs.c.relay_ms, jobs.c.id.desc()).limit(1)
    for row in await Database.read(record.database, lambda connection: connection.execute(question).all()):
        brought = JobRow._make(row)
        await record.store.hydrate([promise_of(brought)])
        await record.database.write(
            lambda connection, row=brought: mark(
                connection, row.namespace, [(row.key, row.revision)], record.generation()
            )
        )


@pytest.fixture
async def restless(app, monkeypatch):
    """
    After each look at the record and at an index of the queue, the next row comes across.
    """
    record = await app.record()
    read, run = record.database.read, record.store.link.run

    async def restless_read(work):
        found = await read(work)
        await across(app)
        return found

    async def restless_run(name, *given, **options):
        found = await run(name, *given, **options)
        if name == "page":
            await across(app)
        return found

    monkeypatch.setattr(record.database, "read", restless_read)
    monkeypatch.setattr(record.store.link, "run", restless_run)


async def listed(app, *, limit, cursor=None, between=None):
    """
    Jobs of mail, page by page.
    """
    views, found = await app.views(), []
    for _ in range(200):
        page = await views.page(JobState.scheduled, "mail", cursor=cursor, limit=limit)
        assert len(page.jobs) == len(page.places) <= limit
        found += zip(page.jobs, page.places, strict=True)
        cursor = page.cursor
        if cursor is None:
            return found
        if between is not None:
            await between(app)
    raise AssertionError("a list without an end")


@pytest.mark.parametrize("limit", [1, 4])
async def test_each_job_on_either_side_of_the_horizon_is_listed_once(app, ids, limit):
    found = await listed(app, limit=limit)
    assert sorted(ids) == sorted(job.id for job, _ in found)
    due = [job.due_ms for job, _ in found]
    assert app.settings.shards > 1 or sorted(due) == due, "each shard is listed by itself"
    for at, (_, place) in enumerate(found):
        behind = await listed(app, limit=limit, cursor=place)
        assert [job.id for job, _ in found[at + 1 :]] == [job.id for job, _ in behind]


@pytest.mark.parametrize("limit", [1, 4])
async def test_a_job_that_comes_across_the_horizon_between_two_pages_is_listed(app, ids, limit):
    # One that was listed before it came may be listed again.
    assert set(ids) == {job.id for job, _ in await listed(app, limit=limit, between=across)}


@pytest.mark.parametrize("limit", [1, 4])
async def test_a_job_that_comes_across_the_horizon_within_a_page_is_listed(app, ids, restless, limit):
    assert set(ids) == {job.id for job, _ in await listed(app, limit=limit)}


async def test_a_purge_leaves_no_job_that_comes_across_the_horizon(app, ids, restless):
    assert len(ids) == await app.purge("mail")
    assert {JobState.cancelled} == {(await app.job("mail", id_).get()).state for id_ in ids}
    assert JobState.scheduled is (await app.job("sms", "far").get()).state


async def test_a_cursor_that_is_none_of_ours_is_refused(app):
    views = await app.views()
    for cursor in ("record:", "record:5 mail/a", "record:x mail/a 0:", "0:soon mail/a", "x", ""):
        with pytest.raises(UsageError, match="not a cursor of this list"):
            await views.page(JobState.scheduled, cursor=cursor)
