"""
Transactions that nobody waits for any more.
"""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import insert

from duly.errors import RecordUnavailable
from duly.record import database as module
from duly.record.database import sync_engine
from duly.record.tables import jobs
from tests.eventually import eventually
from tests.record.way.kit import commit, promised, rows_of


@pytest.fixture
def in_the_way(migrated_url):
    """
    Somebody else's transaction, which a row called `a` has to wait for.
    """
    engine = sync_engine(migrated_url)
    with engine.connect() as connection:
        connection.execute(insert(jobs), [promised("a", namespace="duly")._asdict()])
        yield connection
    engine.dispose()


async def at_rest(database):
    await eventually(lambda: database.engine.sync_engine.pool.checkedout() == 0, 60)


async def test_one_whose_caller_was_cancelled_commits_nothing_later(database, in_the_way):
    writing = asyncio.create_task(commit(database, promised("a", namespace="duly")))
    await eventually(lambda: database.engine.sync_engine.pool.checkedout() == 1, 60)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    in_the_way.rollback()
    await at_rest(database)
    assert {} == await rows_of(database)


async def test_one_that_took_too_long_commits_nothing_later(database, in_the_way, monkeypatch):
    monkeypatch.setattr(module, "ANSWERS_WITHIN_S", 0.3)
    with pytest.raises(RecordUnavailable, match="no answer within"):
        await commit(database, promised("a", namespace="duly"))
    in_the_way.rollback()
    monkeypatch.undo()
    await at_rest(database)
    assert {} == await rows_of(database)
