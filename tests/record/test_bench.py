"""
`duly bench record` measures what it says: real servers, small sizes, no word about speed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select

from duly.bench import measures, postgres
from duly.bench.measures import Sizes, possible
from duly.bench.rig import rig
from duly.cli.bench import bench
from duly.errors import UsageError
from duly.record.database import Database
from duly.record.tables import metadata
from tests import databases

SMALL = Sizes(jobs=300, requests=200, seconds=0.2)


async def test_every_figure_is_there_and_nothing_is_left_in_the_database(record_url):
    async with rig(None, record_url) as each:
        figures = await measures.record(each, SMALL)
    assert all(figure.value > 0 for figure in figures)
    assert [3_000, 10_000, 15, 50, 0.6] == [figure.bound for figure in figures if figure.bound]
    database = Database(record_url)
    for table in metadata.sorted_tables:
        count = select(func.count()).select_from(table)
        assert 0 == await database.read(lambda connection, count=count: connection.scalar(count)), table.name
    await database.aclose()


def test_a_database_of_its_own_syncs_and_is_gone_afterwards():
    import psycopg

    databases.program("postgresql", "initdb")
    with postgres.postgresql() as url:
        with psycopg.connect(url) as connection:
            [[fsync]] = connection.execute("SHOW fsync").fetchall()
            [[files]] = connection.execute("SHOW data_directory").fetchall()
        assert "on" == fsync
        assert Path(files).exists()
    assert not Path(files).exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=5)


def test_where_there_is_no_database_it_is_left_out_and_named_when_asked_for(monkeypatch):
    monkeypatch.setattr(postgres, "program", lambda _: None)
    assert "record" not in possible()
    assert "record" in possible(record=True)
    with pytest.raises(UsageError, match="no PostgreSQL to measure with"):
        bench.main(["record"], standalone_mode=False)
