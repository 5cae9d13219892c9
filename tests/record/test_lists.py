"""
Lists of what is scheduled, on both sides of the horizon, while jobs come across it.
"""

from __future__ import annotations

from asyncio import gather
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


of_one = pytest.mark.one_shard("each shard is listed by itself, and its pages end with it")


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url, horizon="1m") as app:
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


async def interleave(app, count, *, together):
    """
    Send jobs far ahead, every other one by way of the queue, *together* of them due at the same time.
    """
    ids = [f"i{at:03}" for at in range(count)]
    due = {id_: NOON + at // together * SECOND for at, id_ in enumerate(ids)}
    await gather(*(app.enqueue("mail", id=id_, delay=50) for id_ in ids[::2]))
    await gather(*(app.job("mail", id_).reschedule(due_at=due[id_]) for id_ in ids[::2]))
    await gather(*(app.enqueue("mail", id=id_, due_at=due[id_]) for id_ in ids[1::2]))
    await (await app.record()).settle()
    return ids


async def across(app, count=1, *, marked=True):
    """
    Bring the next rows of the record to the queue, as the relay does when their time is near.
    """
    record = await app.record()
    mine = (jobs.c.namespace == record.store.namespace, jobs.c.relay_ms.is_not(None))
    question = select(jobs).where(*mine).order_by(jobs.c.relay_ms, jobs.c.id.desc()).limit(count)
    for row in await Database.read(record.database, lambda connection: connection.execute(question).all()):
        brought = JobRow._make(row)
        await record.store.hydrate([promise_of(brought)])
        if marked:
            await record.database.write(
                lambda connection, row=brought: mark(
                    connection, row.namespace, [(row.key, row.revision)], record.generation(), {}
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


@of_one
async def test_jobs_that_take_turns_on_both_sides_of_the_horizon_fill_pages(app):
    ids = await interleave(app, 120, together=1)
    views, pages, cursor = await app.views(), [], None
    while cursor is not None or not pages:
        page = await views.page(JobState.scheduled, cursor=cursor, limit=100)
        pages.append([job.id for job in page.jobs])
        cursor = page.cursor
        assert len(pages) < 5
    assert ids == [id_ for page in pages for id_ in page]


@pytest.mark.parametrize("limit", [3, 7, 100])
async def test_a_list_goes_on_right_behind_each_job(app, limit):
    ids = await interleave(app, 24, together=4)
    found = await listed(app, limit=100)
    assert ids == sorted(job.id for job, _ in found)
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


@of_one
async def test_a_page_has_a_job_once_that_comes_across_the_horizon_meanwhile(app, ids, after):
    views, record = await app.views(), await app.record()
    # The first question to the queue is which of the rows it has by now.
    after(record.store.link, "run", lambda: across(app, len(ids)))
    page = await views.page(JobState.scheduled, limit=100)
    assert sorted([*ids, "other", "far"]) == sorted(job.id for job in page.jobs)


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_a_job_that_came_across_the_horizon_unknown_to_its_row_is_listed_once(app, ids, limit):
    await across(app, len(ids), marked=False)
    assert sorted(ids) == sorted(job.id for job, _ in await listed(app, limit=limit))


async def test_a_purge_leaves_no_job_that_comes_across_the_horizon(app, ids, restless):
    assert len(ids) == await app.purge("mail")
    assert {JobState.cancelled} == {(await app.job("mail", id_).get()).state for id_ in ids}
    assert JobState.scheduled is (await app.job("sms", "far").get()).state


async def test_a_cursor_that_is_none_of_ours_is_refused(app):
    views = await app.views()
    for cursor in ("record:", "record:5 mail/a", "record:x mail/a 0:", "0:soon mail/a", "x", ""):
        with pytest.raises(UsageError, match="not a cursor of this list"):
            await views.page(JobState.scheduled, cursor=cursor)
