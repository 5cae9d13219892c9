"""
Where a handler has no transaction, one sentence says so, before any of its SQL runs.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Duly, JobFailed, Unsupported, UsageError, current_job
from duly.services import children
from tests.record import process_handler
from tests.record.effects import ADD, effects_in
from tests.record.working import working

ON_SQLITE = pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)


@pytest.fixture
def effects(migrated_url):
    with effects_in(migrated_url) as effects:
        yield effects


async def refusal_of(app):
    """
    Run one job, and return what its handler failed with.
    """
    async with working(app):
        job = await app.enqueue("mail", {}, id="a")
        with pytest.raises(JobFailed) as failed:
            await job.result(timeout=30)
    return str(failed.value)


async def test_there_is_none_without_a_record(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as app:

        @app.handler("mail", max_attempts=1)
        async def mail() -> None:
            async with current_job().transaction():
                raise AssertionError("no block begins here")

        told = await refusal_of(app)
    assert "Unsupported" in told
    assert "this worker has no record: set record, DULY_RECORD or --record" in told


@ON_SQLITE
async def test_there_is_none_in_a_process_of_its_own(valkey, namespace, migrated_url):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:
        app.handlers.add(process_handler.mail)
        told = await refusal_of(app)
    assert 'a handler with run_in="process" has no way to the record' in told
    assert 'say run_in="thread"' in told


def test_there_is_none_in_the_process_of_a_job_that_has_crashed():
    app = Duly()

    @app.handler("mail")
    def mail() -> None: ...

    class Job:
        topic, id = "mail", "a"

    with pytest.raises(Unsupported, match="a job that has crashed runs in a process of its own"):
        children._refuse_transaction(mail, Job())


async def test_there_is_no_worker_over_http():
    app = Duly("http://127.0.0.1:1")
    with pytest.raises(Unsupported):
        await app.work()
    await app.aclose()


def test_there_is_none_outside_of_a_handler():
    with pytest.raises(UsageError, match="only known inside a handler"):
        current_job().transaction()


async def test_a_job_without_a_row_has_none(valkey, namespace, migrated_url, effects):
    async with Duly(valkey.url, namespace=namespace) as before:
        await before.enqueue("mail", {}, id="a")
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:

        @app.handler("mail", max_attempts=1)
        async def mail() -> None:
            async with current_job().transaction() as session:
                await session.execute(ADD, {"job": "a", "attempt": 1})

        async with working(app):
            with pytest.raises(JobFailed, match="has no row in the record at revision"):
                await app.job("mail", "a").result(timeout=30)
    assert [] == effects.all()


@ON_SQLITE
async def test_a_block_is_of_the_kind_of_its_function(valkey, namespace, migrated_url):
    refused = []

    async def begin() -> None:
        async with current_job().transaction():
            raise AssertionError("no block begins here")

    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:

        @app.handler("mail")
        async def mail() -> None:
            with (
                pytest.raises(UsageError, match="use `async with` here") as told,
                current_job().transaction(),
            ):
                raise AssertionError("no block begins here")
            refused.append(told.value)

        @app.handler("news", run_in="thread")
        def news() -> None:
            with pytest.raises(UsageError, match="in a thread, use `with`") as told:
                asyncio.run(begin())
            refused.append(told.value)

        async with working(app):
            for topic in ("mail", "news"):
                await (await app.enqueue(topic, {}, id="a")).result(timeout=30)
    assert 2 == len(refused)
