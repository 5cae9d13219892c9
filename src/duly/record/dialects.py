"""
Where databases differ: how each is reached, told to behave, and asked for what SQL has no common word for.
"""

from __future__ import annotations

import json
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, event, literal_column, text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Column, ColumnElement, Connection, Dialect, Engine, Table
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import DBAPIError

CONNECT_S = 10
BUSY_MS = 10_000  #: how long SQLite waits for another writer
LOCK_MS = 200  #: how long a statement of ours waits for a lock on PostgreSQL
LOCK_S = 1  #: and on MariaDB, which counts whole seconds
PREPARED_AFTER = 2  #: times that a statement was said to PostgreSQL, it is prepared
BACKEND = "SELECT pg_backend_pid()"  #: the process that serves the connection at this moment
CHANNEL = "duly_relay"  #: PostgreSQL tells other processes here that rows were committed

#: For each database the drivers: with an event loop, and without.
DRIVERS = {
    "sqlite": ("aiosqlite", "pysqlite"),
    "postgresql": ("psycopg", "psycopg"),
    "mysql": ("asyncmy", "pymysql"),
}
_NAMES = {"mariadb": "mysql", "postgres": "postgresql"}
FORMS = "sqlite:///path/to/file, postgresql://user@host/name or mysql://user@host/name"

_MYSQL: Dialect = mysql.dialect()
_POSTGRESQL: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # of SQLAlchemy's own

# What a server says to one of two transactions that wait for each other, or that met: once more.
_AGAIN = {"40001", "40P01", 1205, 1213}
# That somebody else holds a lock.
_LOCKED = {"55P03", 1205}
# That a table is not there.
_NO_TABLE = {"42P01", 1146}
# That the user or its password is wrong, or a right is missing.
_FORBIDDEN = {"28000", "28P01", "42501", 1044, 1045, 1142, 1143, 1227, 1370, 1698}
_FORBIDDEN_WORDS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
# What ends without a change of ours.  PostgreSQL, by class: connections, resources, an operator, the system,
# objects in use, and a standby that is not yet the primary.
_LATER = ("08", "40", "53", "55", "57", "58", "25006")
# MySQL, besides those below 1000, of the disk, and from 2000 on, of the connection: memory, disk, too many
# connections, shutdown, killed, time limits, and a server that is read-only until it is the primary.
_LATER_NUMBERS = {
    *(1021, 1037, 1038, 1040, 1041, 1053, 1077, 1079, 1114, 1129, 1152, 1158, 1159, 1160, 1161, 1180, 1203),
    *(1205, 1213, 1226, 1290, 1317, 1792, 1836, 1927, 1969, 3024, 4031),
}
# SQLite: a statement that does not fit the schema, no right, a file that is broken or no database.
_LASTING_IN_SQLITE = {1, 3, 8, 11, 23, 26}
_SQLITE_RIGHTS = {3, 8, 23}
# That the role lacks a grant, for a statement or for the database.
_NO_GRANT = {"42501", 1044, 1142, 1143, 1227, 1370}


def parse(url: str, *, sync: bool = False) -> URL:
    """
    The URL of a record with the driver that duly uses.

    Raises:
        UsageError: It is no URL of a database that can be a record.
    """
    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        # Not repeated: it may hold a password.
        raise UsageError(f"record must look like {FORMS}") from None
    word = parts.drivername.partition("+")[0]
    name = _NAMES.get(word, word)
    if name not in DRIVERS:
        raise UsageError(f"a record cannot be kept by {word!r}; it must look like {FORMS}")
    if name == "sqlite" and parts.database in (None, "", ":memory:"):
        raise UsageError("a record in memory remembers nothing; name a file, sqlite:///path/to/file")
    if name != "sqlite" and not parts.database:
        raise UsageError(f"record names no database; it must look like {FORMS}")
    return parts.set(drivername=f"{name}+{DRIVERS[name][sync]}")


def arguments(url: URL) -> dict[str, Any]:
    """
    What an engine for *url* is made with, beside its pool.
    """
    match url.get_backend_name():
        case "postgresql":
            # A server that vanished is noticed, by the system, without a statement of ours.
            ours = {
                "connect_timeout": CONNECT_S,
                "keepalives_idle": 30,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "application_name": "duly",
            }
            # What the URL says counts.
            said = {name: value for name, value in ours.items() if name not in url.query}
            # Nothing is prepared, see `tame`.
            return {"connect_args": said | {"prepare_threshold": None}, "isolation_level": "READ COMMITTED"}
        case "mysql":
            said = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_S}
            # Its default would read rows as they were when the transaction began, and lock the gaps between.
            return {"connect_args": said, "isolation_level": "READ COMMITTED"}
        case _:
            return {"connect_args": {"timeout": BUSY_MS / 1000}}


def tame(engine: Engine) -> None:
    """
    Have each connection of an engine of ours behave.
    """
    match engine.dialect.name:
        case "sqlite":
            event.listen(engine, "connect", _leave_transactions)
            event.listen(engine, "begin", begin_in_sqlite)
        case "postgresql":
            event.listen(engine, "connect", _prepare)


def limit_waiting(engine: Engine) -> None:
    """
    Let no statement of an engine of ours wait long for a lock, while its transaction holds locks itself.

    Whoever has the lock may be a transaction of a user that stays open for hours.
    """
    match engine.dialect.name:
        case "postgresql":
            event.listen(engine, "connect", _limit_waiting)
            event.listen(engine, "begin", _limit_waiting_once)
        case "mysql":
            event.listen(engine, "connect", _limit_waiting)


def _limit_waiting(connection: Any, entry: Any) -> None:
    driver = entry.driver_connection
    cursor = connection.cursor()
    if hasattr(driver, "prepare_threshold"):
        # Behind a pooler the setting would go to whoever has the connection next.
        if driver.prepare_threshold is None:
            entry.info["duly_pooled"] = True
        else:
            cursor.execute(f"SET lock_timeout = {LOCK_MS}")
            connection.commit()
    else:
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}")
    cursor.close()


def _limit_waiting_once(connection: Connection) -> None:
    if "duly_pooled" in connection.info:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_MS}")


def _leave_transactions(connection: Any, _: Any) -> None:
    # Python's own module would begin transactions by itself, and not for every statement.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    # A commit is a promise: it is on the disk, also where write-ahead logging would allow less.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def begin_in_sqlite(connection: Connection) -> None:
    """
    Begin as a writer, unless it only reads: a transaction of SQLite that began by reading cannot become one.
    """
    reads = connection.get_execution_options().get("duly_reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _prepare(connection: Any, entry: Any) -> None:
    """
    Have statements that are repeated prepared, which saves planning them, where a connection has a server
    process to itself.

    A pooler such as pgbouncer may give every transaction another one, which does not know what was prepared.
    """
    cursor = connection.cursor()
    cursor.execute(BACKEND)
    [pid] = cursor.fetchone()
    cursor.close()
    connection.rollback()
    if not is_pooled(entry.driver_connection, pid):
        entry.driver_connection.prepare_threshold = PREPARED_AFTER


def is_pooled(connection: Any, pid: int) -> bool:
    """
    Return whether a connection of psycopg ends at a pooler, given what the server answers to `BACKEND`.

    A pooler makes up the process id that it tells its clients, because theirs changes.
    """
    told: int = connection.info.backend_pid
    return told != pid


def not_by_index(connection: Connection, column: Column[str]) -> ColumnElement[str]:
    """
    A column to compare in a question that another index answers.

    Without statistics SQLite takes the beginning of the primary key for the better way, reads the whole
    namespace and sorts it.
    """
    if connection.dialect.name != "sqlite":
        return column
    return literal_column(f"+{column}", column.type)


def worth_repeating(error: DBAPIError) -> bool:
    """
    Whether the database undid the transaction and asks for it again.
    """
    return bool(_codes(error) & _AGAIN) or "database is locked" in str(error.orig)


def is_locked(error: DBAPIError) -> bool:
    """
    Return whether a statement gave up because somebody else holds a lock.
    """
    return bool(_codes(error) & _LOCKED)


def lacks_table(error: DBAPIError) -> bool:
    """
    Whether the statement failed because a table is not there.
    """
    return bool(_codes(error) & _NO_TABLE) or "no such table" in str(error.orig)


def is_forbidden(error: DBAPIError) -> bool:
    """
    Return whether the database does not let us in, or not do this.
    """
    # A driver that was refused while it connects has only words.
    told = any(words in str(error.orig) for words in _FORBIDDEN_WORDS)
    return told or bool(_codes(error) & _FORBIDDEN) or _sqlite_code(error) in _SQLITE_RIGHTS


def is_outage(error: DBAPIError) -> bool:
    """
    Return whether the database may take the same later: it is away, full or busy.
    """
    if error.connection_invalidated:
        return True
    # The last is what asyncpg makes of most.
    if type(error).__name__ not in {"OperationalError", "InterfaceError", "InternalError", "DBAPIError"}:
        return False
    code = _sqlite_code(error)
    if code is not None:
        return code not in _LASTING_IN_SQLITE
    for told in _codes(error):
        if isinstance(told, str):
            return is_passing_state(told)
        if isinstance(told, int):
            return told < 1000 or 2000 <= told < 3000 or told in _LATER_NUMBERS
    # No connection was made: that is all a driver can tell.
    return not is_forbidden(error) and "does not exist" not in str(error.orig)


def is_passing_state(state: str | None) -> bool:
    """
    Return whether what PostgreSQL says ends without a change of ours; None where it did not answer.
    """
    return state is None or state.startswith(_LATER)


def _sqlite_code(error: DBAPIError) -> int | None:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # without the details above


def lacks_grant(error: DBAPIError) -> bool:
    """
    Whether the statement failed because the role may not do it.
    """
    return bool(_codes(error) & _NO_GRANT)


def _codes(error: DBAPIError) -> set[object]:
    """
    What the database calls it: by the standard's five characters, by a number of its own, or both.
    """
    arguments_ = getattr(error.orig, "args", ())
    own = arguments_[0] if arguments_ and isinstance(arguments_[0], int) else None
    # Drivers name the first differently.
    return {getattr(error.orig, "sqlstate", None), getattr(error.orig, "pgcode", None), own}


def dialect_of(connection: Connection) -> str:
    """
    Return which of the three databases it is: mysql also for MariaDB, whatever the caller's driver calls it.
    """
    name = connection.dialect.name
    return "mysql" if name == "mariadb" else name


def insert_absent(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int | None:
    """
    Insert those rows whose primary key is free; how many that were, None where the database does not tell.
    """
    match connection.dialect.name:
        case "postgresql":
            return _insert_unnested(connection, table, rows)
        case "sqlite":
            statement: Any = sqlite_insert(table).on_conflict_do_nothing()
            return connection.execute(statement.execution_options(preserve_rowcount=True), rows).rowcount
        case _:
            # Not INSERT IGNORE: it would also let pass what does not fit, and take a lock that has to be
            # widened later, for which two transactions wait in vain.
            column = next(iter(table.primary_key.columns))
            connection.execute(mysql_insert(table).on_duplicate_key_update({column.name: column}), rows)
            return None


def _insert_unnested(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """
    Insert with one statement, column by column: one for each row costs several times as much.
    """
    names = list(rows[0])
    columns = dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
    always = list(table.primary_key.columns)[-1].name  # rows are counted by it
    values, many = told_once(columns, always)
    return connection.execute(_unnested(table, many), values).rowcount


def delete_rows(
    connection: Connection,
    table: Table,
    fixed: Mapping[str, str],
    name: str,
    values: Sequence[str],
    *,
    until_ms: int | None = None,
) -> None:
    """
    Delete the rows of one of *values* in the column *name*, beside *fixed* ones in others.

    With *until_ms* only those whose time is over by then.
    """
    if not values:
        return
    past = () if until_ms is None else (table.c.until_ms <= until_ms,)
    if dialect_of(connection) != "mysql":
        same = (table.c[column] == value for column, value in fixed.items())
        connection.execute(delete(table).where(*same, table.c[name].in_(values), *past))
        return
    # Each looked up by its key.  For a list MariaDB may read, and lock, whatever has the same fixed values.
    kind = table.c[name].type.compile(_MYSQL)
    named = "".join(f" AND gone.{column} = :{column}" for column in fixed)
    words = f"""
        DELETE gone
        FROM JSON_TABLE(:values_, '$[*]' COLUMNS (value {kind} PATH '$')) AS given
          STRAIGHT_JOIN {table.name} AS gone ON gone.{name} = given.value{named}
        {"WHERE gone.until_ms <= :until_ms" if past else ""}
    """  # of our own tables
    told = dict(fixed) | {"values_": json.dumps(list(values))}
    connection.execute(text(words), told | ({"until_ms": until_ms} if past else {}))


def told_once(columns: Mapping[str, Sequence[Any]], always: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Parameters for *columns*, and the names of those that are arrays: those whose values differ, and *always*.

    What is the same in all rows, as most is, is told once.
    """
    values: dict[str, Any] = {}
    many: list[str] = []
    for name, each in columns.items():
        if name != always and each.count(each[0]) == len(each):
            values[name] = each[0]
        else:
            values[name] = array(each)
            many.append(name)
    return values, tuple(many)


def choose(kinds: Mapping[str, str], many: Sequence[str]) -> tuple[str, str, str]:
    """
    How to select columns of these *kinds*, *many* of them from arrays: the columns, arrays and their names.
    """
    chosen = ", ".join(
        f'many."{name}"' if name in many else f'CAST(:{name} AS {kind}) AS "{name}"'
        for name, kind in kinds.items()
    )
    arrays = ", ".join(read_array(name, kinds[name]) for name in many)
    return chosen, arrays, ", ".join(f'"{name}"' for name in many)


def read_array(name: str, kind: str) -> str:
    """
    How PostgreSQL reads what `array` wrote, whichever driver sends it.

    Only as text: a driver that asks the server for the types of parameters would want a list for an array.
    """
    return f"CAST(CAST(:{name} AS text) AS {kind}[])"


def array(values: Sequence[Any]) -> str:
    """
    An array as PostgreSQL reads it, of text, numbers or bytes: made ten times as quickly as by a driver.
    """
    kinds = set(map(type, values))
    if all(issubclass(kind, int) for kind in kinds):
        told: Iterable[str] = map(int.__repr__, values)  # also of an enumeration
    elif kinds == {bytes}:
        told = map(_BYTES.format, map(bytes.hex, values))
    elif kinds == {str} and "\\" not in (all_ := "".join(values)) and '"' not in all_:
        told = map(_PLAIN.format, values)
    else:
        told = map(_element, values)
    return f"{{{','.join(told)}}}"


_PLAIN, _BYTES = '"{}"', '"\\\\x{}"'


def _element(value: Any) -> str:
    match value:
        case int():
            return int.__repr__(value)
        case bytes():
            return _BYTES.format(value.hex())
        case None:
            return "NULL"
        case _:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return _PLAIN.format(escaped)


@lru_cache(64)
def _unnested(table: Table, many: tuple[str, ...]) -> Any:
    kinds = {column.name: column.type.compile(_POSTGRESQL) for column in table.columns}
    names = ", ".join(f'"{name}"' for name in kinds)
    chosen, arrays, apart = choose(kinds, many)
    words = f"""
        INSERT INTO {table.name} ({names})
        SELECT {chosen} FROM unnest({arrays}) AS many ({apart})
        ON CONFLICT DO NOTHING
    """  # noqa: S608  # of our own tables
    return text(words).execution_options(preserve_rowcount=True)


def notify(connection: Connection, namespace: str) -> None:
    """
    Have PostgreSQL tell the relays of other processes once this transaction is committed.

    Never in a transaction of a user: until it is on the disk, no other one that does so can commit.
    """
    connection.execute(
        text("SELECT pg_notify(:channel, :namespace)"), {"channel": CHANNEL, "namespace": namespace}
    )
