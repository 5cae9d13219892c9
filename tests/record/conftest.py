"""
Fixtures of the record's tests: each runs on SQLite, on PostgreSQL and on MariaDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from duly.connection import Link
from duly.record import relay
from duly.record.database import Database as RecordDatabase
from duly.record.schema import migrate
from duly.store import Store
from tests.databases import MariaDB, PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.databases import Database
    from tests.servers import Server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A machine that stands still for two seconds leaves no push to a relay that does not run.
    """
    monkeypatch.setattr(relay, "PUSH_S", 60.0)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Database]:
    database = PostgreSQL()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Database]:
    database = MariaDB()
    try:
        yield database.start()
    finally:
        database.stop()


DATABASES = ["sqlite", "postgresql", "mariadb"]


@pytest.fixture(params=DATABASES)
def record_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """
    An empty database of this test's own.
    """
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/record.db"
        return
    database: Database = request.getfixturevalue(request.param)
    url = database.fresh()
    yield url
    database.drop(url)


@pytest.fixture(params=DATABASES)
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """
    A database of this test's own, with the tables of a record.
    """
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/record.db"
        migrate(url)
        yield url
        return
    database: Database = request.getfixturevalue(request.param)
    url = database.migrated()
    yield url
    database.drop(url)


@pytest.fixture
async def database(migrated_url: str) -> AsyncIterator[RecordDatabase]:
    """
    The tables, and a way to them.
    """
    database = RecordDatabase(migrated_url)
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


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """
    Let something happen once the next call of a method has been answered.
    """

    def arrange(owner: Any, name: str, happen: Callable[[], Awaitable[Any]]) -> None:
        method, to_happen = getattr(owner, name), [happen]

        async def call(*args: Any, **options: Any) -> Any:
            answer = await method(*args, **options)
            while to_happen:
                await to_happen.pop()()
            return answer

        monkeypatch.setattr(owner, name, call)

    return arrange
