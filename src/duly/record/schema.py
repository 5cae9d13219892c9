"""
The tables of a record: made, brought up to date, and looked at, by any number of processes at once.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.errors import DulyError, LayoutMismatch, RecordUnavailable, ServerUnsuitable
from duly.extras import needed

with needed("duly.record.schema"):
    from alembic import command
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.schema import CreateIndex

    from duly.record.database import first_line, refusal_of, sync_engine
    from duly.record.dialects import is_outage
    from duly.record.engines import begin_anew
    from duly.record.rights import GRANTED, VERSION_TABLE, missing_grants
    from duly.record.searchpath import need_schema, quoted, tables_elsewhere
    from duly.record.tables import metadata
    from duly.record.target import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from duly.record.target import AnyTarget

MIGRATE = "duly record migrate"
RESTORE = "restore it from a backup, or migrate a new database"
LOCK = 7_309_474_520  #: of PostgreSQL, for as long as one process migrates
LOCKED_WITHIN_S = 120


def migrate(source: AnyTarget) -> tuple[str | None, str]:
    """
    Bring the tables up to date; the version that they had, None where there were none, and have now.

    Raises:
        UsageError: It is no database of a record, or lacks the schema.
        RecordUnavailable: The database cannot be reached.
        LayoutMismatch: They were made by a later duly.
    """
    with reached(source) as engine:
        if engine.dialect.name == "sqlite":
            _write_ahead(engine)
        with engine.connect() as connection, _alone(connection):
            need_schema(connection)
            before = _version(connection)
            _known(before)
            if before != newest():
                config = _config()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
            return before, newest()


def check(source: AnyTarget) -> list[str]:
    """
    What is wrong with the tables, or with what the role may do, a sentence each; nothing where all is well.

    Raises:
        UsageError: It is no database of a record, or lacks the schema.
        RecordUnavailable: The database cannot be reached.
    """
    parts = target_of(source).url
    if parts.get_backend_name() == "sqlite" and not Path(parts.database or "").exists():
        if not Path(parts.database or "").parent.is_dir():
            raise RecordUnavailable(f"the record cannot be reached: there is no folder for {parts.database}")
        return [f"the record has no tables yet: {MIGRATE}"]  # SQLite would make a file by looking at it
    with reached(source) as engine, engine.connect() as connection:
        return [*wrong(connection), *missing_grants(connection)]


def wrong(connection: Connection) -> list[str]:
    """
    What is wrong with the tables, a sentence each, with its remedy.

    Raises:
        UsageError: There is no such schema.
    """
    need_schema(connection)
    version = _version(connection)
    if version is None:
        return [tables_elsewhere(connection) or f"the record has no tables yet: {MIGRATE}"]
    try:
        _known(version)
    except LayoutMismatch as error:
        return [str(error)]
    if version != newest():
        return [f"the record is at version {version}, this duly needs {newest()}: {MIGRATE}"]
    return [*_shape(connection), *_journal(connection)]


def require(connection: Connection) -> None:
    """
    Go on only with tables that fit.

    Raises:
        UsageError: There is no such schema.
        LayoutMismatch: They do not; the message says what to do.
    """
    found = wrong(connection)
    if found:
        raise LayoutMismatch("; ".join(found))


def grants(source: AnyTarget, role: str) -> list[str]:
    """
    The statements that let *role* do what processes with a record do; none for SQLite, which has no roles.

    Migrations need more: they are run by the owner of the tables.

    Raises:
        UsageError: It is no database of a record.
    """
    target = target_of(source)
    parts, schema = target.url, target.schema
    tables = [table.name for table in metadata.sorted_tables]
    match target.name:
        case "postgresql":
            whom, where = quoted(role), "" if schema is None else f"{quoted(schema)}."
            names = ", ".join(f"{where}{name}" for name in tables)
            return [
                *([] if schema is None else [f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {whom};"]),
                f"GRANT {', '.join(GRANTED)} ON {names} TO {whom};",
                f"GRANT SELECT ON {where}{VERSION_TABLE} TO {whom};",
            ]
        case "mysql":
            user, _, host = role.partition("@")
            where = _ticked(parts.database or "")
            whom = f"{_ticked(user)}@{_ticked(host or '%')}"
            return [
                *(f"GRANT {', '.join(GRANTED)} ON {where}.{name} TO {whom};" for name in tables),
                f"GRANT SELECT ON {where}.{VERSION_TABLE} TO {whom};",
            ]
        case _:
            return []


def _ticked(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def newest() -> str:
    """
    The version that this duly brings tables to.
    """
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None  # noqa: S101  # there is a first step
    return head


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "duly.record:migrations")
    # Of a path with a percent sign or a space nothing is read here; said, because Alembic warns otherwise.
    config.set_main_option("path_separator", "os")
    return config


def _version(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _known(version: str | None) -> None:
    if version is None:
        return
    try:
        ScriptDirectory.from_config(_config()).get_revision(version)
    except CommandError:
        raise LayoutMismatch(
            f"the record is at version {version}, which this duly does not know: it was made by a later one; "
            "upgrade duly here"
        ) from None


def _shape(connection: Connection) -> list[str]:
    """
    Compare what the database says of its tables with what duly uses.
    """
    seen = inspect(connection)
    there = set(seen.get_table_names())
    found = []
    for table in metadata.sorted_tables:
        if table.name not in there:
            found.append(f"table {table.name} is missing although the version says it is there: {RESTORE}")
            continue
        columns = {each["name"] for each in seen.get_columns(table.name)}
        missing = [each.name for each in table.columns if each.name not in columns]
        if missing:
            found.append(f"table {table.name} lacks {', '.join(missing)}: {RESTORE}")
        key = seen.get_pk_constraint(table.name)["constrained_columns"]
        wanted = [each.name for each in table.primary_key.columns]
        if sorted(key) != sorted(wanted):
            found.append(f"the primary key of table {table.name} must be ({', '.join(wanted)}): {RESTORE}")
        indexed = {each["name"] for each in seen.get_indexes(table.name)}
        found += [
            f"index {index.name} of table {table.name} is missing, without which every row is read: "
            f"{str(CreateIndex(index).compile(dialect=connection.dialect)).strip()}"
            for index in table.indexes
            if index.name not in indexed
        ]
    return found


def _journal(connection: Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    if mode == "wal":
        return []
    return [f"journal_mode is {mode}, so that readers and writers wait for each other: {MIGRATE}"]


def partitions(source: AnyTarget) -> list[tuple[str, str, int | None]]:
    """
    The parts that tables are kept in, one for each that is whole, with about how many rows each holds.

    Raises:
        UsageError: It is no database of a record.
        RecordUnavailable: The database cannot be reached.
    """
    with reached(source) as engine, engine.connect() as connection:
        match engine.dialect.name:
            case "postgresql":
                rows = connection.execute(text(_PARTITIONS_POSTGRESQL))
            case "mysql" | "mariadb":
                rows = connection.execute(text(_PARTITIONS_MYSQL))
            case _:
                names = [str(table.name) for table in metadata.sorted_tables]
                return [
                    (name, name, connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar())  # noqa: S608  # names of ours
                    for name in names
                    if inspect(connection).has_table(name)
                ]
        return [
            (table, part, None if count is None or count < 0 else int(count)) for table, part, count in rows
        ]


# reltuples is -1 until the first look of autovacuum.
_PARTITIONS_POSTGRESQL = """
SELECT coalesce(parent.relname, part.relname), part.relname, part.reltuples
FROM pg_class part
LEFT JOIN pg_inherits link ON link.inhrelid = part.oid
LEFT JOIN pg_class parent ON parent.oid = link.inhparent
WHERE part.relkind = 'r' AND part.relname LIKE 'duly\\_%' AND pg_table_is_visible(part.oid)
  AND part.relname <> 'duly_version'
ORDER BY 1, length(part.relname), 2
"""
_PARTITIONS_MYSQL = """
SELECT table_name, coalesce(partition_name, table_name), table_rows
FROM information_schema.partitions
WHERE table_schema = database() AND table_name LIKE 'duly\\_%' AND table_name <> 'duly_version'
ORDER BY table_name, partition_ordinal_position
"""


# -- reaching it, and alone ---------------------------------------------------------------------------------


@contextmanager
def reached(source: AnyTarget) -> Iterator[Engine]:
    """
    A plain engine, whose errors are said as a record's; one that was handed in is not closed.

    Raises:
        UsageError: It is no database of a record.
        RecordUnavailable: The database cannot be reached.
        LayoutMismatch, ServerUnsuitable: It lacks tables, or refused.
    """
    engine = sync_engine(source)
    try:
        yield engine
    except (DBAPIError, OSError) as error:
        if isinstance(error, DBAPIError) and not is_outage(error):
            told = refusal_of(error)
            if isinstance(told, DulyError):
                raise told from error
            raise ServerUnsuitable(f"the record refused: {first_line(error)}") from error
        raise RecordUnavailable(f"the record cannot be reached: {first_line(error)}") from error
    finally:
        if isinstance(target_of(source).source, str):
            engine.dispose()


def _write_ahead(engine: Engine) -> None:
    """
    Let readers go on while somebody writes; the file remembers it.
    """
    deadline = time.monotonic() + LOCKED_WITHIN_S
    while True:
        try:
            # No transaction around it, which every connection of SQLAlchemy's own begins.
            with closing(engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
                return
        except sqlite3.OperationalError as error:
            # Unlike other statements this one does not wait for its turn.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise RecordUnavailable(f"the record cannot be reached: {error}") from error
            time.sleep(0.05)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """
    A transaction of one process at a time; the others find it done.
    """
    match connection.dialect.name:
        case "postgresql":
            # Of the transaction, as a pooler gives the next one another connection of the server.
            with connection.begin():
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
                yield
        case "mysql" | "mariadb":
            # Locks are the server's, not the database's: without the name, other databases would wait.
            name: dict[str, Any] = {"wait": LOCKED_WITHIN_S}
            lock = "concat('duly.', md5(database()))"
            got = connection.execute(text(f"SELECT GET_LOCK({lock}, :wait)"), name).scalar()
            connection.commit()
            if got != 1:
                raise DulyError(
                    f"another process has migrated the record for {LOCKED_WITHIN_S} s; look at it"
                )
            try:
                with connection.begin():
                    yield
            finally:
                if not connection.invalidated:
                    connection.execute(text(f"SELECT RELEASE_LOCK({lock})"))
                    connection.commit()
        case _:
            with connection.begin():  # as a writer, of which SQLite has one
                begin_anew(connection)
                yield
