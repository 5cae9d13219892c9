"""
Results with a record: the row of a job has its result, however short the queue keeps it.
"""

from __future__ import annotations

import pytest

from duly import Duly, JobCancelled
from duly.job import JobState
from tests.eventually import eventually
from tests.record.kit import read_rows
from tests.record.test_whole import working


@pytest.fixture
async def app(valkey, namespace, migrated_url):
    app = Duly(valkey.url, namespace=namespace, record=migrated_url)

    @app.handler("double")
    async def double(number: int) -> int | None:
        return 2 * number if number else None

    app.double = double
    yield app
    await app.aclose()


async def forget(app, job):
    """
    Let the queue forget a job whose row says that it has ended.
    """
    store = await app.store()
    assert [True] == await store.forget([(job.key, job.placed.revision)])


@pytest.mark.parametrize(("number", "result"), [(7, 14), (0, None)])
async def test_a_result_is_in_the_record_whatever_the_queue_keeps(app, number, result):
    job = await app.enqueue(app.double.job(number), id="a", retain=0)

    async def remembered():
        row = (await read_rows((await app.record()).database))["a"]
        assert JobState.succeeded == row.state

    async with working(app):
        await eventually(remembered, 30)
    assert result == await job.result(timeout=10), "of the queue"
    await forget(app, job)
    assert result == await job.result(timeout=10), "of the record"
    assert not (await job.get()).result_gone


async def test_a_job_that_is_not_kept_says_why_it_was_cancelled(app):
    job = await app.enqueue(app.double.job(7), id="a", retain=0, delay=30)
    await job.cancel()
    with pytest.raises(JobCancelled, match=r"^double/a was cancelled: cancelled$"):
        await job.result(timeout=10)
    await forget(app, job)
    with pytest.raises(JobCancelled, match=r"^double/a was cancelled"):
        await job.result(timeout=10)
