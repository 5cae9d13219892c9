"""
The rows' side of a comparison: read them in the order of their keys, and mend those that are wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import bindparam, func, select, update

from duly.job import JobKey, JobState
from duly.record.dialects import insert_absent
from duly.record.rows import AT_ONCE_MS, ENDED
from duly.record.rules import Promised
from duly.record.stored import pick
from duly.record.tables import jobs
from duly.records import pack_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

_SEEN = (
    *("topic", "id", "revision", "state", "due_ms", "relay_ms", "lane"),
    *("expires_ms", "ttr_ms", "retain_s", "max_crashes", "envelope", "payload"),
)


class SeenRow(NamedTuple):
    """
    A row as a comparison needs it.
    """

    key: JobKey
    promised: Promised


class Ended(NamedTuple):
    """
    How a job ended, for a row that does not say so.
    """

    key: JobKey
    revision: int
    state: JobState
    outcome: bytes
    attempts: int
    crashes: int
    started_ms: int
    ended_ms: int
    lateness_ms: int | None


def count_rows(connection: Connection, namespace: str) -> int:
    """
    How many there are.
    """
    return connection.scalar(select(func.count()).where(jobs.c.namespace == namespace)) or 0


def page_of(connection: Connection, namespace: str, after: JobKey | None, limit: int) -> list[SeenRow]:
    """
    The rows behind *after* in the order of their keys, of one topic; none where there are no more.
    """
    # Topic by topic: not every database finds what is greater than a pair of columns by its index.
    if after is not None:
        page = rows_between(connection, namespace, after.topic, after.id, limit)
        if page:
            return page
    behind = [] if after is None else [jobs.c.topic > after.topic]
    topic = connection.scalar(select(func.min(jobs.c.topic)).where(jobs.c.namespace == namespace, *behind))
    return [] if topic is None else rows_between(connection, namespace, topic, "", limit)


def rows_between(
    connection: Connection, namespace: str, topic: str, after: str, limit: int, *, until: str | None = None
) -> list[SeenRow]:
    """
    Rows of a topic in the order of their ids, behind *after* and, if that is said, up to *until*.
    """
    return [seen(*row) for row in columns_between(connection, namespace, topic, after, limit, until=until)]


def columns_between(
    connection: Connection, namespace: str, topic: str, after: str, limit: int, *, until: str | None = None
) -> Sequence[Any]:
    """
    The same, as the database gives them: the arguments of `compared`.
    """
    statement = select(*(jobs.c[name] for name in _SEEN)).where(
        jobs.c.namespace == namespace, jobs.c.topic == topic, jobs.c.id > after
    )
    if until is not None:
        statement = statement.where(jobs.c.id <= until)
    return connection.execute(statement.order_by(jobs.c.id).limit(limit)).all()


def rows_of(connection: Connection, namespace: str, keys: Sequence[JobKey]) -> dict[JobKey, Promised]:
    """
    The rows of *keys*, those that there are.
    """
    return dict(seen(*row) for row in pick(connection, _SEEN, namespace, keys))


def known(connection: Connection, namespace: str, keys: Sequence[JobKey]) -> set[JobKey]:
    """
    Those of *keys* that there is a row of.
    """
    return {JobKey(*row) for row in pick(connection, ("topic", "id"), namespace, keys)}


def compared(
    topic: str,
    id_: str,
    revision: int,
    state: int,
    due_ms: int,
    relay_ms: int | None,
    lane: int,
    expires_ms: int,
    ttr_ms: int,
    retain_s: int | None,
    max_crashes: int,
    envelope: bytes,
    payload: bytes,
) -> tuple[str, str, int, bool, int, bytes, bool]:
    """
    What a comparison looks at, from the columns of a row: topic and id, then the fields of `Promised`.
    """
    options = pack_options(expires_ms, ttr_ms, retain_s, max_crashes, len(envelope))
    body = b"".join((bytes((lane,)), options, envelope, payload))
    return (topic, id_, revision, state in ENDED, due_ms, body, relay_ms is not None)


def seen(*columns: Any) -> SeenRow:
    """
    A row for a comparison, from its columns.
    """
    topic, id_, revision, ended, due_ms, body, on_its_way = compared(*columns)
    return SeenRow(JobKey(topic, id_), Promised(revision, ended, due_ms, body, on_its_way))


def relay_once_more(connection: Connection, namespace: str, rows: Sequence[tuple[JobKey, int]]) -> int:
    """
    Have the relay take open rows to the queue again, those that are still at their revision.
    """
    return _each(
        connection,
        update(jobs)
        .where(*_at_revision(namespace), jobs.c.relay_ms.is_(None))
        .values(relay_ms=jobs.c.due_ms - AT_ONCE_MS),
        [_bound(key, revision) for key, revision in rows],
    )


def promise_anew(
    connection: Connection, namespace: str, rows: Sequence[tuple[JobKey, int]], now_us: int
) -> int:
    """
    Give open rows a revision above the one that the queue has otherwise, and have the relay take them there.
    """
    return _each(
        connection,
        update(jobs)
        .where(*_at_revision(namespace))
        .values(revision=bindparam("new"), relay_ms=jobs.c.due_ms - AT_ONCE_MS, changed_ms=now_us // 1_000),
        [_bound(key, revision) | {"new": max(revision + 1, now_us)} for key, revision in rows],
    )


def record_ends(connection: Connection, namespace: str, ends: Sequence[Ended], now_ms: int) -> int:
    """
    Write down how jobs ended, in open rows that are still at their revision.
    """
    names = ("state", "outcome", "attempts", "crashes", "started_ms", "ended_ms", "lateness_ms")
    return _each(
        connection,
        update(jobs)
        .where(*_at_revision(namespace))
        .values({name: bindparam(f"its_{name}") for name in names} | {"changed_ms": now_ms}),
        [
            _bound(end.key, end.revision) | {f"its_{name}": getattr(end, name) for name in names}
            for end in ends
        ],
    )


def adopt(connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """
    Take over what the queue holds: in rows that there are not, and in rows of lower revisions.
    """
    if not rows:
        return 0
    insert_absent(connection, jobs, rows)
    key = ("namespace", "topic", "id")
    values: dict[str, Any] = {name: bindparam(f"its_{name}") for name in rows[0] if name not in key}
    statement = (
        update(jobs)
        .where(
            *(jobs.c[name] == bindparam(f"of_{name}") for name in key),
            jobs.c.revision < bindparam("its_revision"),
        )
        .values(values)
    )
    bound = [
        {f"{'of' if name in key else 'its'}_{name}": value for name, value in row.items()} for row in rows
    ]
    connection.execute(statement, bound)
    return len(rows)


def _at_revision(namespace: str) -> list[Any]:
    return [
        jobs.c.namespace == namespace,
        jobs.c.topic == bindparam("of_topic"),
        jobs.c.id == bindparam("of_id"),
        jobs.c.revision == bindparam("of_revision"),
        jobs.c.state == JobState.scheduled,
    ]


def _bound(key: JobKey, revision: int) -> dict[str, Any]:
    return {"of_topic": key.topic, "of_id": key.id, "of_revision": revision}


def _each(connection: Connection, statement: Any, bound: list[dict[str, Any]]) -> int:
    if not bound:
        return 0
    connection.execute(statement, bound)
    return len(bound)
