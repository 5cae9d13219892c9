"""
Fixtures of the record's tests: each runs on SQLite, on PostgreSQL and on MariaDB.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from duly import Duly
from duly.connection import Link
from duly.record import absence
from duly.record.database import Database as RecordDatabase
from duly.record.schema import migrate
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.databases import Database
    from tests.servers import Server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A machine that stands still for a second leaves no push to a relay that does not run.
    """
    monkeypatch.setattr(absence, "ANSWERS_WITHIN_S", 4.0)


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
def other_url(request: pytest.FixtureRequest, migrated_url: str, tmp_path: Path) -> Iterator[str]:
    """
    A second database of the same kind, with the tables of a record.
    """
    if migrated_url.startswith("sqlite"):
        url = f"sqlite:///{tmp_path}/other.db"
        migrate(url)
        yield url
        return
    kind = "postgresql" if migrated_url.startswith("postgresql") else "mariadb"
    database: Database = request.getfixturevalue(kind)
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
async def queue(valkey: Server, namespace: str, shards: int) -> AsyncIterator[Store]:
    """
    A store on the server's own clock.
    """
    link = Link(valkey.url)
    store = Store(link, namespace=namespace, shards=shards)
    await store.create()
    yield store
    await link.aclose()


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
async def app(
    request: pytest.FixtureRequest, valkey: Server, namespace: str, migrated_url: str
) -> AsyncIterator[Duly]:
    """
    An app with a horizon of a minute; jobs of mail run until `app.goes_on` is set.
    """
    async with Duly(
        valkey.url, namespace=namespace, record=migrated_url, horizon="1m", shards=request.param
    ) as app:
        app.goes_on, app.running = asyncio.Event(), []

        @app.handler("mail")
        async def mail() -> None:
            app.running.append(1)
            await app.goes_on.wait()

        yield app


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
