"""
The tables of a record: made once, by whoever comes first, and looked at.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from duly.errors import LayoutMismatch, RecordUnavailable, UsageError
from duly.record.database import sync_engine
from duly.record.schema import check, migrate, newest, partitions
from duly.record.tables import metadata


def execute(url: str, sql: str) -> None:
    engine = sync_engine(url)
    with engine.begin() as connection:
        connection.execute(text(sql))
    engine.dispose()


def test_migrating_makes_the_tables_and_again_changes_nothing(record_url):
    assert ["the record has no tables yet: duly record migrate"] == check(record_url)
    assert (None, newest()) == migrate(record_url)
    assert [] == check(record_url)
    assert (newest(), newest()) == migrate(record_url)
    assert [] == check(record_url)


def test_looking_for_a_file_does_not_make_it(tmp_path):
    check(f"sqlite:///{tmp_path}/record.db")
    assert [] == list(tmp_path.iterdir())


def test_two_processes_may_migrate_at_once(record_url):
    code = "import sys; from duly.record.schema import migrate; print(migrate(sys.argv[1]))"
    both = [
        subprocess.Popen([sys.executable, "-c", code, record_url], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = sorted(process.communicate(timeout=100)[0].strip() for process in both)
    assert [0, 0] == [process.returncode for process in both]
    # One of them made the tables, the other found them made.
    assert sorted([f"({newest()!r}, {newest()!r})", f"(None, {newest()!r})"]) == said
    assert [] == check(record_url)


def test_migrated_tables_are_those_that_the_code_speaks_of(record_url):
    migrate(record_url)
    engine = sync_engine(record_url)

    def ours(kind_of, name, type_, reflected, compare_to):
        # PostgreSQL's partitions are tables, too.
        return not (type_ == "table" and reflected and compare_to is None)

    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": "duly_version", "include_object": ours}
        )
        assert [] == compare_metadata(context, metadata)
    engine.dispose()


def test_a_step_that_broke_off_is_gone_again(record_url):
    migrate(record_url)
    execute(record_url, "DROP TABLE duly_version")
    if record_url.startswith("postgresql"):
        # Definitions of tables are part of a transaction there, so a step cannot break off.
        execute(record_url, "DROP TABLE duly_jobs, duly_attempts")
    migrate(record_url)
    assert [] == check(record_url)


def test_what_is_missing_is_named(record_url):
    migrate(record_url)
    execute(record_url, "DROP TABLE duly_positions")
    execute(record_url, "ALTER TABLE duly_jobs DROP COLUMN lateness_ms")
    first, second = check(record_url)
    assert first.startswith("table duly_jobs lacks lateness_ms")
    assert second.startswith("table duly_positions is missing")


def test_tables_of_a_later_duly_are_left_alone(record_url):
    migrate(record_url)
    execute(record_url, "UPDATE duly_version SET version_num = '9999'")
    [sentence] = check(record_url)
    assert sentence.endswith("it was made by a later one; upgrade duly here")
    with pytest.raises(LayoutMismatch, match="9999"):
        migrate(record_url)


def test_jobs_are_spread_over_partitions_by_their_id(record_url):
    migrate(record_url)
    parts = [part for table, part, _ in partitions(record_url) if table == "duly_jobs"]
    assert (1 if record_url.startswith("sqlite") else 16) == len(set(parts))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://127.0.0.1:1/nothing", "the record cannot be reached: "),
        ("mysql://127.0.0.1:1/nothing", "the record cannot be reached: "),
        ("sqlite:////no/such/folder/record.db", "the record cannot be reached: "),
    ],
)
def test_a_database_that_is_not_there_is_named(url, sentence):
    for ask in (check, migrate):
        with pytest.raises(RecordUnavailable, match=sentence):
            ask(url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("secret", "record must look like"),
        ("oracle://secret@host/name", "cannot be kept by 'oracle'"),
        ("sqlite://", "a record in memory remembers nothing"),
        ("postgresql://secret@host", "names no database"),
    ],
)
def test_a_wrong_url_is_refused_and_not_repeated(url, sentence):
    with pytest.raises(UsageError, match=sentence) as refused:
        check(url)
    assert "secret" not in str(refused.value)
