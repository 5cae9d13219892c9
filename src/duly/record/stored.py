"""
Rows found and stored: the statements that the verbs share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select, update

from duly.record.rows import JobRow
from duly.record.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from duly.job import JobKey

AT_ONCE = 500  #: ids in one statement


def find(
    connection: Connection, namespace: str, keys: Iterable[JobKey], *, lock: bool = False
) -> dict[JobKey, JobRow]:
    """
    The rows of some jobs; with *lock* nobody else changes them until the transaction is over.
    """
    by_topic: dict[str, list[str]] = {}
    for key in sorted(keys):
        by_topic.setdefault(key.topic, []).append(key.id)
    found: dict[JobKey, JobRow] = {}
    statement = _FIND.with_for_update() if lock else _FIND
    for topic, ids in by_topic.items():
        # By topic, because not every database finds pairs of columns by its index.
        for at in range(0, len(ids), AT_ONCE):
            named = {"namespace_": namespace, "topic_": topic, "ids": ids[at : at + AT_ONCE]}
            for row in map(JobRow._make, connection.execute(statement, named)):
                found[row.key] = row
    return found


_FIND = (
    select(*jobs.c)
    .where(
        jobs.c.namespace == bindparam("namespace_"),
        jobs.c.topic == bindparam("topic_"),
        jobs.c.id.in_(bindparam("ids", expanding=True)),
    )
    .order_by(jobs.c.id)
)
_KEY = ("namespace", "topic", "id")
_STORE = (
    update(jobs)
    .where(*(jobs.c[name] == bindparam(f"{name}_") for name in _KEY))
    .values({column.name: bindparam(column.name) for column in jobs.c if column.name not in _KEY})
)


def store(connection: Connection, rows: Sequence[JobRow]) -> None:
    """
    Write rows over those with their keys.
    """
    if rows:
        connection.execute(
            _STORE,
            [
                {f"{name}_" if name in _KEY else name: value for name, value in row._asdict().items()}
                for row in sorted(rows, key=lambda row: row.key)
            ],
        )
