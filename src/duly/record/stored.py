"""
Rows found and stored: the statements that the verbs share.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import bindparam, select, text, update

from duly.job import JobKey, JobState
from duly.record.batches import statement
from duly.record.dialects import array, dialect_of, insert_absent, read_array
from duly.record.rows import JobRow
from duly.record.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Connection

AT_ONCE = 500  #: ids in one statement


def find(
    connection: Connection, namespace: str, keys: Iterable[JobKey], *, lock: bool = False
) -> dict[JobKey, JobRow]:
    """
    The rows of some jobs; with *lock* nobody else changes them until the transaction is over.

    Only rows are locked: where there is none, others may insert one.
    """
    unnested = connection.dialect.name == "postgresql"
    if lock and dialect_of(connection) == "mysql":
        # In a transaction with repeatable reads, to lock what is not there locks the gap where it would be,
        # and others could insert nothing into that.
        there = pick(connection, ("topic", "id"), namespace, sorted(keys))
        return lock_rows(connection, namespace, [JobKey(*row) for row in there])
    words = _picked_by_array(JobRow._fields, lock=lock) if unnested else _FIND
    rows = map(JobRow._make, _by_topic(connection, words, namespace, sorted(keys), unnested=unnested))
    return {row.key: row for row in rows}


def lock_rows(connection: Connection, namespace: str, keys: Iterable[JobKey]) -> dict[JobKey, JobRow]:
    """
    Lock the rows of some jobs, which are there, and return them as they are now.
    """
    if dialect_of(connection) != "mysql":
        return find(connection, namespace, keys, lock=True)
    # Each looked up by its key.  For a list of ids MariaDB may read, and lock, the whole topic, and wait
    # for any row of that which somebody else has locked.
    asked = sorted(keys)
    found: dict[JobKey, JobRow] = {}
    for at in range(0, len(asked), AT_ONCE):
        some = [{"topic": key.topic, "id": key.id} for key in asked[at : at + AT_ONCE]]
        told = {"namespace": namespace, "rows": msgspec.json.encode(some).decode()}
        rows = map(JobRow._make, connection.execute(_lock_by_json(), told))
        found |= {row.key: row for row in rows}
    return found


@cache
def _lock_by_json() -> Any:
    words = statement("lock", "mysql").text.replace(
        "/* columns */", ", ".join(f"job.{name}" for name in JobRow._fields)
    )
    return text(words).columns(*(jobs.c[name] for name in JobRow._fields))


def insert_rows(connection: Connection, namespace: str, rows: Sequence[JobRow]) -> dict[JobKey, JobRow]:
    """
    Insert those of *rows* whose keys are free, and lock no row that stands.

    Returns: the rows that stand under the others; a key that is not among them was free.
    """
    if dialect_of(connection) == "mysql":
        return _insert_after_look(connection, namespace, rows)
    standing: dict[JobKey, JobRow] = {}
    while rows and insert_absent(connection, jobs, [row._asdict() for row in rows]) != len(rows):
        standing |= find(connection, namespace, [row.key for row in rows])
        # They were there a moment ago, ended, and their time to be kept is over: these are new.
        rows = [row for row in rows if row.key not in standing]
    return standing


def _insert_after_look(
    connection: Connection, namespace: str, rows: Sequence[JobRow]
) -> dict[JobKey, JobRow]:
    """
    Look first, because MariaDB locks every row that an insert meets.
    """
    standing = find(connection, namespace, [row.key for row in rows])
    new = {row.key: row for row in rows if row.key not in standing}
    if not new:
        return standing
    insert_absent(connection, jobs, [row._asdict() for row in new.values()])
    requests = pick(connection, ("topic", "id", "request"), namespace, new)
    made = {key for topic, id_, request in requests if request == new[key := JobKey(topic, id_)].request}
    # Somebody was quicker.  A transaction with repeatable reads may see such a row only as it locks it.
    return standing | lock_rows(connection, namespace, new.keys() - made)


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
    words = (
        _picked_by_array(names, still_open=still_open) if unnested else _picked(names, still_open=still_open)
    )
    return _by_topic(connection, words, namespace, keys, unnested=unnested)


def _by_topic(
    connection: Connection, words: Any, namespace: str, keys: Iterable[JobKey], *, unnested: bool
) -> Iterator[tuple[Any, ...]]:
    # By topic, because not every database finds pairs of columns by its index.
    by_topic: dict[str, list[str]] = {}
    for key in keys:
        by_topic.setdefault(key.topic, []).append(key.id)
    for topic, ids in by_topic.items():
        for at in range(0, len(ids), AT_ONCE):
            some = ids[at : at + AT_ONCE]
            named = {"namespace_": namespace, "topic_": topic, "ids": array(some) if unnested else some}
            yield from connection.execute(words, named)


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
