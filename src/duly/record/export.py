"""
The rows of a record, one after the other: any number of them, in a bounded amount of memory.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import and_, or_, select

from duly.durations import say_time
from duly.job import JobState, Lane, moment
from duly.record.rows import JobRow
from duly.record.schema import reached
from duly.record.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from duly.record.target import AnyTarget

AT_ONCE = 1_000  #: rows in one question

#: What an exported row has, in this order.
FIELDS = (
    *("topic", "id", "state", "revision", "priority", "due_at", "accepted_at", "changed_at", "started_at"),
    *("ended_at", "lateness_ms", "attempts", "crashes", "payload", "outcome"),
)


def rows(
    source: AnyTarget, namespace: str, *, topics: Collection[str] = (), states: Collection[JobState] = ()
) -> Iterator[JobRow]:
    """
    The rows of a namespace by topic and id, as they are when they are come to.

    Raises:
        UsageError: It is no database of a record.
        RecordUnavailable: The database cannot be reached.
    """
    wanted = [jobs.c.namespace == namespace]
    if topics:
        wanted.append(jobs.c.topic.in_(sorted(topics)))
    if states:
        wanted.append(jobs.c.state.in_(sorted(states)))
    question = select(*jobs.c).where(*wanted).order_by(jobs.c.topic, jobs.c.id).limit(AT_ONCE)
    with reached(source) as engine:
        page = question
        while True:
            # A transaction for each page: one for all of them would hold up the database's own cleaning.
            with engine.connect().execution_options(duly_reads=True) as connection:
                found = [JobRow._make(row) for row in connection.execute(page)]
            yield from found
            if len(found) < AT_ONCE:
                return
            last = found[-1]
            page = question.where(
                or_(jobs.c.topic > last.topic, and_(jobs.c.topic == last.topic, jobs.c.id > last.id))
            )


def document(row: JobRow) -> dict[str, Any]:
    """
    A row as it is exported: scheduled stands for whatever has not ended.
    """
    return {
        "topic": row.topic,
        "id": row.id,
        "state": JobState(row.state).name,
        "revision": row.revision,
        "priority": "normal" if row.lane == Lane.callback else Lane(row.lane).name,
        "due_at": _time(row.due_ms),
        "accepted_at": _time(row.accepted_ms),
        "changed_at": _time(max(row.changed_ms, row.ended_ms or 0)),
        "started_at": _time(row.started_ms),
        "ended_at": _time(row.ended_ms),
        "lateness_ms": row.lateness_ms,
        "attempts": row.attempts,
        "crashes": row.crashes,
        "payload": _value(row.payload),
        "outcome": _value(row.outcome),
    }


def cells(row: JobRow) -> list[object]:
    """
    A row as a line of CSV: what is JSON stays JSON, and what is not there is empty.
    """
    about = document(row)
    about |= {name: _text(about[name]) for name in ("payload", "outcome")}
    return ["" if about[name] is None else about[name] for name in FIELDS]


def _time(ms: int | None) -> str | None:
    found = moment(ms)
    return None if found is None else say_time(found)


def _value(data: bytes | None) -> object:
    if not data:
        return None
    try:
        return msgspec.json.decode(bytes(data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Of another language's sender, maybe: kept as it is.
        return {"base64": base64.b64encode(bytes(data)).decode()}


def _text(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
