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

from duly.record.dialects import array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, TextClause


_HERE = files("duly.record.sql")


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
    connection: Connection, name: str, fixed: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> None:
    """
    Run a statement for all *rows*, each of another job.
    """
    if not rows:
        return
    # In one order everywhere, so that two transactions with the same rows seldom wait for each other.
    rows = sorted(rows, key=lambda row: (row["topic"], row["id"]))
    dialect = "mysql" if connection.dialect.name == "mariadb" else connection.dialect.name
    match dialect:
        case "sqlite":
            # No way to a server: each costs less than putting them into one would.
            connection.execute(statement(name, dialect), [fixed | row for row in rows])
        case "postgresql":
            columns = {column: array([row[column] for row in rows]) for column in rows[0]}
            connection.execute(statement(name, dialect), fixed | columns)
        case _:
            # JSON has no bytes: they travel as base64.  To have a driver send one after the other took it
            # five to twenty times as long.
            whole = {"rows": msgspec.json.encode(rows).decode()}
            connection.execute(statement(name, dialect), fixed | whole)
