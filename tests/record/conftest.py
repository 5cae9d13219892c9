"""
Fixtures of the record's tests: each runs on SQLite, on PostgreSQL and on MariaDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from duly.connection import Link
from duly.record.database import Database
from duly.record.schema import migrate
from duly.store import Store
from tests.databases import MariaDB, PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests import databases
    from tests.servers import Server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[databases.Database]:
    database = PostgreSQL()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[databases.Database]:
    database = MariaDB()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def record_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """
    An empty database of this test's own.
    """
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/record.db"
        return
    database: databases.Database = request.getfixturevalue(request.param)
    url = database.fresh()
    yield url
    database.drop(url)


@pytest.fixture
async def database(record_url: str) -> AsyncIterator[Database]:
    """
    A record with tables and no rows.
    """
    migrate(record_url)
    database = Database(record_url)
    yield database
    await database.aclose()


@pytest.fixture
async def queue(valkey: Server, namespace: str) -> AsyncIterator[Store]:
    """
    A store on the server's own clock.
    """
    link = Link(valkey.url)
    store = Store(link, namespace=namespace)
    await store.create()
    yield store
    await link.aclose()
