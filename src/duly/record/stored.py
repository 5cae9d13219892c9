"""
Rows found and stored: the statements that the verbs share.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select, text, update

from duly.job import JobState
from duly.record.dialects import array, read_array
from duly.record.rows import JobRow
from duly.record.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Connection

    from duly.job import JobKey

AT_ONCE = 500  #: ids in one statement


def find(
    connection: Connection, namespace: str, keys: Iterable[JobKey], *, lock: bool = False
) -> dict[JobKey, JobRow]:
    """
    The rows of some jobs; with *lock* nobody else changes them until the transaction is over.
    """
    unnested = connection.dialect.name == "postgresql"
    if unnested:
        statement = _picked_by_array(JobRow._fields, lock=lock)
    else:
        statement = _FIND.with_for_update() if lock else _FIND
    rows = map(JobRow._make, _by_topic(connection, statement, namespace, sorted(keys), unnested=unnested))
    return {row.key: row for row in rows}


def pick(
    connection: Connection,
    names: tuple[str, ...],
    namespace: str,
    keys: Iterable[JobKey],
    *,
    still_open: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """
    Some columns of the rows of some jobs, in no order; with *still_open* of those that have not ended.
    """
    unnested = connection.dialect.name == "postgresql"
    statement = (
        _picked_by_array(names, still_open=still_open) if unnested else _picked(names, still_open=still_open)
    )
    return _by_topic(connection, statement, namespace, keys, unnested=unnested)


def _by_topic(
    connection: Connection, statement: Any, namespace: str, keys: Iterable[JobKey], *, unnested: bool
) -> Iterator[tuple[Any, ...]]:
    # By topic, because not every database finds pairs of columns by its index.
    by_topic: dict[str, list[str]] = {}
    for key in keys:
        by_topic.setdefault(key.topic, []).append(key.id)
    for topic, ids in by_topic.items():
        for at in range(0, len(ids), AT_ONCE):
            some = ids[at : at + AT_ONCE]
            named = {"namespace_": namespace, "topic_": topic, "ids": array(some) if unnested else some}
            yield from connection.execute(statement, named)


@cache
def _picked(names: tuple[str, ...], *, still_open: bool) -> Any:
    found = select(*(jobs.c[name] for name in names)).where(*_NAMED)
    return found.where(jobs.c.state == JobState.scheduled.value) if still_open else found


@cache
def _picked_by_array(names: tuple[str, ...], *, still_open: bool = False, lock: bool = False) -> Any:
    # One look into one partition for each, in the order of the array, whatever the statistics say.  A list of
    # ids is looked for in every partition and planned anew each time, and before there are statistics that
    # took forty times as long as this.
    more = f"AND job.state = {JobState.scheduled.value}" if still_open else ""
    words = f"""
        SELECT found.* FROM unnest({read_array("ids", "text")}) AS given (id)
        CROSS JOIN LATERAL (
            SELECT {", ".join(names)} FROM duly_jobs AS job
            WHERE job.namespace = :namespace_ AND job.topic = :topic_ AND job.id = given.id {more}
            LIMIT 1 {"FOR UPDATE" if lock else ""}
        ) AS found
    """  # noqa: S608  # names of our own columns
    return text(words).columns(*(jobs.c[name] for name in names))


_NAMED = (
    jobs.c.namespace == bindparam("namespace_"),
    jobs.c.topic == bindparam("topic_"),
    jobs.c.id.in_(bindparam("ids", expanding=True)),
)
_FIND = select(*jobs.c).where(*_NAMED).order_by(jobs.c.id)
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
