"""
Fixtures of the record's tests: each runs on SQLite, on PostgreSQL and on MariaDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.databases import MariaDB, PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.databases import Database


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


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
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
