"""
Many rows changed by one statement, where the database can; the statements are files in `sql`.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import text

from duly.record.dialects import array, dialect_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, TextClause


_HERE = files("duly.record.sql")

SKIP = "SKIP LOCKED"  #: what is said to PostgreSQL in the place of `unless_locked`


@cache
def statement(name: str, dialect: str) -> TextClause:
    """
    Read a statement as *dialect* says it.
    """
    source = (_HERE / f"{name}.{dialect}.sql").read_text("utf-8")
    return text(re.sub(r"^--.*\n", "", source, flags=re.MULTILINE))


@lru_cache(64)
def filled(name: str, **words: str) -> TextClause:
    """
    Read a statement of PostgreSQL's that has places for *words*.
    """
    source = statement(name, "postgresql").text
    for place, said in words.items():
        source = source.replace(f"/* {place} */", said)
    return text(source)


def run_batch(
    connection: Connection,
    name: str,
    fixed: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    *,
    wait: bool = False,
) -> int:
    """
    Run a statement for all *rows*, each of another job.

    Jobs whose rows other transactions have locked are left out; with *wait* the statement waits for them.

    Returns: the number of jobs that it came to, at most: some are locked if these are fewer than *rows*, or
    stand at other revisions.
    """
    if not rows:
        return 0
    # In one order everywhere, so that two transactions with the same rows seldom wait for each other.
    rows = sorted(rows, key=lambda row: (row["topic"], row["id"]))
    dialect = dialect_of(connection)
    match dialect:
        case "sqlite":
            # No way to a server: each costs less than putting them into one would.
            connection.execute(statement(name, dialect), [fixed | row for row in rows])
        case "postgresql":
            columns = {column: array([row[column] for row in rows]) for column in rows[0]}
            words = filled(name, unless_locked="" if wait else SKIP)
            return connection.execute(words, fixed | columns).rowcount
        case _:
            if not wait and not (rows := _free(connection, fixed["namespace"], rows)):
                return 0
            # JSON has no bytes: they travel as base64.  To have a driver send one after the other took it
            # five to twenty times as long.
            whole = {"rows": msgspec.json.encode(rows).decode()}
            connection.execute(statement(name, dialect), fixed | whole)
    return len(rows)


def _free(connection: Connection, namespace: str, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """
    Lock the jobs of *rows* that nobody else has locked, and return the rows of these.

    An update of MariaDB cannot pass over what is locked.
    """
    asked = [{name: row[name] for name in ("topic", "id", "revision")} for row in rows]
    told = {"namespace": namespace, "rows": msgspec.json.encode(asked).decode()}
    free = {(topic, id_) for topic, id_ in connection.execute(statement("free", "mysql"), told)}
    return [row for row in rows if (row["topic"], row["id"]) in free]
