"""
What the role of a record's processes has to be allowed, and what of it is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import false, insert, null, select, text
from sqlalchemy.exc import DBAPIError

from duly.record.dialects import lacks_grant
from duly.record.tables import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Executable, Table

VERSION_TABLE = "duly_version"  #: of Alembic, beside that of the application
GRANTED = (
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
)  #: on every table but that of the version, which is only read

_TABLES = text(
    "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relname LIKE 'duly\\_%' "
    "AND pg_table_is_visible(oid)"
)
_HAS = text("SELECT has_table_privilege(CAST(:table AS regclass), :right)")


def missing_grants(connection: Connection) -> list[str]:
    """
    Return a sentence if the role of *connection* lacks a grant on a table that is there, else nothing.
    """
    if connection.dialect.name == "sqlite":
        return []
    lacks = _lacks_in_postgresql if connection.dialect.name == "postgresql" else _lacks_in_mariadb
    missing = [f"{right} on {table}" for table, right in lacks(connection)]
    if not missing:
        return []
    what = ", ".join(missing)
    return [f"the role of the record lacks {what}: its owner runs what `duly record grants --to ROLE` prints"]


def _lacks_in_postgresql(connection: Connection) -> Iterator[tuple[str, str]]:
    there = set(connection.scalars(_TABLES))
    wanted = [(table.name, right) for table in metadata.sorted_tables for right in GRANTED]
    for table, right in [*wanted, (VERSION_TABLE, "SELECT")]:
        if table in there and not connection.scalar(_HAS, {"table": table, "right": right}):
            yield table, right


def _lacks_in_mariadb(connection: Connection) -> Iterator[tuple[str, str]]:
    # Its lists of grants do not say what a role gives that the user has.  What touches no row tells.
    for table in metadata.sorted_tables:
        for right, statement in _harmless(table).items():
            try:
                connection.execute(statement)
            except DBAPIError as error:
                if lacks_grant(error):
                    yield table.name, right
    connection.rollback()


def _harmless(table: Table) -> dict[str, Executable]:
    key = next(iter(table.primary_key.columns))
    columns = list(table.columns)
    # None reads a column, for which it would need SELECT as well.
    nothing = select(*(null() for _ in columns)).where(false())
    return {
        "SELECT": select(*columns).where(false()),
        "INSERT": insert(table).from_select(columns, nothing),
        "UPDATE": table.update().where(false()).values({key: ""}),
        "DELETE": table.delete().where(false()),
    }
