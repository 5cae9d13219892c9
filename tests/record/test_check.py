"""
What `duly record check` says of each fault, and that what it says repairs it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy.engine import make_url

from duly import Duly
from duly.cli.main import main
from duly.doctor.record import tables
from duly.record import schema
from duly.record.database import sync_engine
from duly.settings import Settings


def execute(url, *statements):
    engine = sync_engine(url)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))
        connection.commit()
    engine.dispose()


@pytest.fixture
def migrated(record_url):
    """
    A database of this test's own, which it may damage.
    """
    schema.migrate(record_url)
    return record_url


def examine_record(url):
    return tables(Settings(record=url))


def test_a_missing_index_is_made_by_the_statement_that_is_said(migrated):
    indexes = {"duly_jobs_relay": "duly_jobs", "duly_jobs_due": "duly_jobs"}
    for name, table in indexes.items():
        execute(migrated, f"DROP INDEX {name}" + (f" ON {table}" if migrated.startswith("mysql") else ""))
    found = schema.check(migrated)
    assert sorted(indexes) == sorted(sentence.split()[1] for sentence in found)
    told = examine_record(migrated)
    assert ("problem", "do what it says") == (told.level, told.remedy)
    execute(migrated, *(sentence.partition("read: ")[2] for sentence in found))
    assert [] == schema.check(migrated)


def test_an_older_version_is_brought_up_to_date_by_what_is_said(migrated):
    execute(migrated, "DROP TABLE duly_idempotency", "UPDATE duly_version SET version_num = '0001'")
    [sentence] = schema.check(migrated)
    assert (
        f"the record is at version 0001, this duly needs {schema.newest()}: duly record migrate" == sentence
    )
    assert "duly record migrate" == examine_record(migrated).remedy
    assert ("0001", schema.newest()) == schema.migrate(migrated)
    assert [] == schema.check(migrated)


@pytest.mark.parametrize("record_url", ["sqlite"], indirect=True)
def test_another_journal_mode_is_mended_by_what_is_said(migrated):
    execute_alone(migrated, "PRAGMA journal_mode = DELETE")
    [sentence] = schema.check(migrated)
    assert sentence.startswith("journal_mode is delete")
    assert sentence.endswith(": duly record migrate")
    schema.migrate(migrated)
    assert [] == schema.check(migrated)


def execute_alone(url, statement):
    with closing(sqlite3.connect(make_url(url).database)) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("DROP TABLE duly_api_keys", "table duly_api_keys is missing although the version says it is there"),
        ("ALTER TABLE duly_jobs DROP COLUMN lateness_ms", "table duly_jobs lacks lateness_ms"),
    ],
)
def test_what_no_statement_brings_back_is_restored(migrated, fault, said):
    execute(migrated, fault)
    [sentence] = schema.check(migrated)
    assert f"{said}: restore it from a backup, or migrate a new database" == sentence


# -- grants -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgresql", "mariadb"])
def owner_url(request):
    server = request.getfixturevalue(request.param)
    url = server.migrated()
    yield url
    server.drop(url)


@pytest.fixture
def role_url(owner_url):
    name = f"role_{os.getpid()}_{make_url(owner_url).database}"
    is_mariadb = owner_url.startswith("mysql")
    execute(owner_url, f"CREATE USER {name}@'%'" if is_mariadb else f"CREATE ROLE {name} LOGIN")
    yield make_url(owner_url).set(username=name).render_as_string()
    if is_mariadb:
        execute(owner_url, f"DROP USER {name}@'%'")
    else:
        execute(owner_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.mark.parametrize("right", ["SELECT", "INSERT", "UPDATE", "DELETE"])
def test_each_grant_that_is_missing_is_named_and_printed_grants_give_it(owner_url, role_url, right):
    role = make_url(role_url).username
    statements = schema.grants(owner_url, role)
    where = "" if owner_url.startswith("postgresql") else f"{make_url(owner_url).database}."
    whom = f"{role}" if owner_url.startswith("postgresql") else f"{role}@'%'"
    execute(owner_url, *statements)
    assert [] == schema.check(role_url)
    execute(owner_url, f"REVOKE {right} ON {where}duly_attempts FROM {whom}")
    [sentence] = schema.check(role_url)
    assert sentence == (
        f"the role of the record lacks {right} on duly_attempts: its owner runs what "
        "`duly record grants --to ROLE` prints"
    )
    execute(owner_url, *statements)
    assert [] == schema.check(role_url)


def test_a_role_that_may_nothing_is_told_what_it_needs(role_url, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert 0 != main(("record", "check", "--record", role_url))
    assert "`duly record grants` prints what its role needs" in capsys.readouterr().err


# -- the queue of a record --------------------------------------------------------------------------------


@pytest.fixture
def words(capsys, monkeypatch, tmp_path, valkey, namespace, shards):
    monkeypatch.chdir(tmp_path)

    def run(*words, url=valkey.url):
        code = main((*words, "--url", url, "--namespace", namespace))
        return code, *capsys.readouterr()

    return run


async def _use(url, namespace, record):
    async with Duly(url, namespace=namespace, record=record) as app:
        await app.record()


def test_a_database_of_another_record_is_named(words, valkey, namespace, migrated_url, other_url):
    fits = f"the record fits, at version {schema.newest()}\n"
    # As long as nobody has used them together, either will do.
    assert (0, fits, "") == words("record", "check", "--record", migrated_url)
    asyncio.run(_use(valkey.url, namespace, migrated_url))
    assert (0, fits, "") == words("record", "check", "--record", migrated_url)
    code, out, _ = words("record", "check", "--record", other_url)
    assert 1 == code
    assert out.startswith(f"namespace {namespace!r} at ")
    assert "belongs to the record in another database: say that one's record, or choose another" in out
    code, out, _ = words("doctor", "--record", other_url)
    assert 1 == code
    assert "belongs to the record in another database" in " ".join(out.split())


def test_a_queue_that_is_away_is_no_fault_of_the_record(words, migrated_url, monkeypatch):
    monkeypatch.setenv("DULY_SOCKET_TIMEOUT", "100ms")
    code, out, err = words("record", "check", "--record", migrated_url, url="redis://127.0.0.1:1")
    assert (0, f"the record fits, at version {schema.newest()}\n") == (code, out)
    assert err.startswith("duly: which record the queue belongs to could not be looked at: ")
