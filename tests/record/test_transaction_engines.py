"""
Transactions of handlers where the record is an engine that was handed in, or is in a schema of its own.
"""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from duly import Duly, current_job
from duly.errors import JobFailed
from duly.record.schema import migrate
from duly.record.target import Target
from tests.record.working import working

INSERT = text("INSERT INTO effects VALUES ('a')")


@pytest.fixture
def url(postgresql):
    """
    A database with a table of the application's, and a schema that is not in the search path.
    """
    url = postgresql.fresh()
    engine = create_engine(psycopg(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id text)"))
        connection.execute(text("CREATE SCHEMA promises"))
    engine.dispose()
    yield url
    postgresql.drop(url)


def psycopg(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def effects(url: str) -> int:
    engine = create_engine(psycopg(url))
    with engine.connect() as connection:
        count = connection.execute(text("SELECT count(*) FROM effects")).scalar_one()
    engine.dispose()
    return count


async def run(app: Duly, where: str) -> object:
    """
    Run a handler with a block, on the event loop or in a thread; its result.
    """
    if where == "loop":

        @app.handler("mail", max_attempts=1)
        async def in_loop() -> None:
            async with current_job().transaction() as session:
                await session.execute(INSERT)
                session.set_result("sent")

    else:

        @app.handler("mail", max_attempts=1, run_in="thread")
        def in_thread() -> None:
            with current_job().transaction() as session:
                session.execute(INSERT)
                session.set_result("sent")

    async with app, working(app):
        return await (await app.enqueue("mail", {})).result(timeout=60)


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_schema_is_the_records_and_the_handler_keeps_its_own(url, valkey, namespace, where):
    migrate(Target(url, schema="promises"))
    app = Duly(valkey.url, namespace=namespace, record=url, record_schema="promises")
    assert ("sent", 1) == (await run(app, where), effects(url))


async def test_an_async_engine_is_for_async_handlers(url, valkey, namespace):
    migrate(url)
    engine = create_async_engine(psycopg(url))
    app = Duly(valkey.url, namespace=namespace, record=engine)
    assert ("sent", 1) == (await run(app, "loop"), effects(url))
    await engine.dispose()


async def test_a_sync_engine_is_for_plain_functions(url, valkey, namespace):
    migrate(url)
    engine = create_engine(psycopg(url))
    app = Duly(valkey.url, namespace=namespace, record=engine)
    assert ("sent", 1) == (await run(app, "thread"), effects(url))
    engine.dispose()


async def test_an_async_engine_in_a_thread_is_refused_before_anything_is_done(url, valkey, namespace):
    migrate(url)
    engine = create_async_engine(psycopg(url))
    app = Duly(valkey.url, namespace=namespace, record=engine)
    with pytest.raises(JobFailed, match="does nothing in a thread"):
        await run(app, "thread")
    assert 0 == effects(url)
    await engine.dispose()


async def test_a_sync_engine_on_the_event_loop_is_refused_before_anything_is_done(url, valkey, namespace):
    migrate(url)
    engine = create_engine(psycopg(url))
    app = Duly(valkey.url, namespace=namespace, record=engine)
    with pytest.raises(JobFailed, match="would hold up the event loop"):
        await run(app, "loop")
    assert 0 == effects(url)
    engine.dispose()
