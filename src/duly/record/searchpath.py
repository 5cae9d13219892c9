"""
The schema of PostgreSQL that a record's tables are in, where that is a setting.

Statements name tables without a schema.  Each transaction says first where they are: a setting of the
transaction ends with it, so that it holds behind a pooler too, which gives every transaction another
connection of the server, and changes nothing for others who use the same connection.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import event, text
from sqlalchemy.exc import SQLAlchemyError

from duly.errors import ServerUnsuitable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

T = TypeVar("T")

OPTION = "duly_schema"  #: of the connections of an engine, the schema

# The former path is read before the new one is set, whatever the planner does.
_ENTER = text(
    "WITH was AS MATERIALIZED (SELECT current_setting('search_path') AS path) "
    "SELECT path, set_config('search_path', :path, true) FROM was"
)
_LEAVE = text("SELECT set_config('search_path', :path, true)")

_IS_USABLE = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :schema")
_WITH_TABLES = text(
    "SELECT space.nspname FROM pg_class found JOIN pg_namespace space ON space.oid = found.relnamespace "
    "WHERE found.relname = 'duly_version' AND found.relkind = 'r' AND NOT pg_table_is_visible(found.oid) "
    "ORDER BY 1"
)


def quoted(name: str) -> str:
    """
    Return a name as SQL says it.
    """
    return f'"{name.replace(chr(34), 2 * chr(34))}"'


def search_in(engine: Engine, schema: str) -> Engine:
    """
    Return an engine on the same connections whose transactions find tables in *schema*, and nowhere else.
    """
    view = engine.execution_options(**{OPTION: schema})
    path = f"SET LOCAL search_path TO {quoted(schema).replace('%', '%%')}"
    event.listen(view, "begin", lambda connection: connection.exec_driver_sql(path))
    return view


def schema_of(connection: Connection) -> str | None:
    """
    Return the schema that transactions of a connection look in, None where that is no setting.
    """
    schema: str | None = connection.get_execution_options().get(OPTION)
    return schema


def need_schema(connection: Connection) -> None:
    """
    Refuse a schema that is not there or may not be used: PostgreSQL would only say that it has no tables.

    Raises:
        UsageError: There is no such schema.
        ServerUnsuitable: The role may not use it.
    """
    schema = schema_of(connection)
    if schema is None:
        return
    usable = connection.scalar(_IS_USABLE, {"schema": schema})
    if usable is False:
        raise ServerUnsuitable(
            f"the role of the record may not use schema {schema!r}: `duly record grants --to ROLE` prints "
            "what it needs"
        )
    if usable is None:
        raise UsageError(
            f"there is no schema {schema!r} in the record's database: correct record_schema, or say "
            f"CREATE SCHEMA {quoted(schema)} there, and then duly record migrate"
        )


def tables_elsewhere(connection: Connection) -> str | None:
    """
    Return a sentence about tables of a record in schemas that are not looked in, None if there are none.
    """
    if connection.dialect.name != "postgresql":
        return None
    found = list(connection.scalars(_WITH_TABLES))
    if not found:
        return None
    schema = schema_of(connection)
    here = f"schema {schema!r}" if schema is not None else "the schemas of its search path"
    there = " and ".join(repr(each) for each in found)
    return (
        f"the record has no tables in {here}, but there are some in {there}: make new ones with "
        f"duly record migrate, or use those with record_schema={found[0]!r} (DULY_RECORD_SCHEMA={found[0]})"
    )


def within_schema(connection: Connection, schema: str, work: Callable[[Connection], T]) -> T:
    """
    Run *work* in the transaction of somebody else, who finds the search path as it was.

    Raises:
        UsageError: The connection commits each statement by itself.
    """
    former = connection.execute(_ENTER, {"path": quoted(schema)}).scalar_one()
    if not _in_transaction(connection):
        raise UsageError(
            "the session commits each statement by itself, so that none finds the record in schema "
            f"{schema!r}: begin a transaction first"
        )
    try:
        answer = work(connection)
    except BaseException:
        # A transaction that has failed refuses this too, and takes the setting back when it is rolled back.
        with suppress(SQLAlchemyError):
            connection.execute(_LEAVE, {"path": former})
        raise
    connection.execute(_LEAVE, {"path": former})
    return answer


def _in_transaction(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "is_in_transaction"):  # of asyncpg
        return bool(driver.is_in_transaction())
    return bool(driver.info.transaction_status)  # of libpq: 0 is idle
