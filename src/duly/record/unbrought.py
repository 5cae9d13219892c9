"""
Rows that Redis has not been given: to be brought soon, or beyond the horizon.  Every read is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, select

from duly.job import JobKey, JobState
from duly.record.dialects import not_by_index
from duly.record.rows import JobRow
from duly.record.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection, Select, Subquery

NEAR = 1_000  #: rows of the namespace on this side of the horizon that are looked at
FAR = 10_000  #: the same beyond it, where that is asked for with every call


class FarTopic(NamedTuple):
    """
    What a topic has beyond the horizon.
    """

    jobs: int
    soonest_ms: int


def to_bring(connection: Connection, namespace: str, far_ms: int, limit: int) -> list[JobRow]:
    """
    Rows that Redis has to be told of before *far_ms*, soonest first.
    """
    statement = (
        select(jobs)
        .where(not_by_index(connection, jobs.c.namespace) == namespace, jobs.c.relay_ms < far_ms)
        .order_by(jobs.c.relay_ms)
        .limit(limit)
    )
    return list(map(JobRow._make, connection.execute(statement)))


def near_rows(
    connection: Connection, namespace: str, topics: Sequence[str], far_ms: int, limit: int = NEAR
) -> dict[JobKey, int]:
    """
    Rows of *topics* that are due before *far_ms*, with their revisions, among the next of the namespace.
    """
    rows = _soonest(connection, namespace, jobs.c.relay_ms < far_ms).limit(limit).subquery()
    found = connection.execute(
        select(rows.c.topic, rows.c.id, rows.c.revision).where(_open(rows), rows.c.topic.in_(topics))
    )
    return {JobKey(topic, id_): revision for topic, id_, revision in found}


def far_topics(connection: Connection, namespace: str, far_ms: int, limit: int = FAR) -> dict[str, FarTopic]:
    """
    How many rows of each topic are due at *far_ms* or later, among the next of the namespace.
    """
    rows = _soonest(connection, namespace, jobs.c.relay_ms >= far_ms).limit(limit).subquery()
    found = connection.execute(
        select(rows.c.topic, func.count(), func.min(rows.c.relay_ms))
        .where(_open(rows))
        .group_by(rows.c.topic)
    )
    return {topic: FarTopic(count, soonest_ms) for topic, count, soonest_ms in found}


def far_times(connection: Connection, namespace: str, from_ms: int, until_ms: int, limit: int) -> list[int]:
    """
    When rows are due that are due within this time, soonest first; all of it is beyond the horizon.
    """
    within = jobs.c.relay_ms >= from_ms, jobs.c.relay_ms < until_ms
    rows = _soonest(connection, namespace, *within).limit(limit).subquery()
    found = connection.execute(select(rows.c.relay_ms).where(_open(rows)).order_by(rows.c.relay_ms))
    return list(found.scalars())


def _soonest(
    connection: Connection, namespace: str, *where: ColumnElement[bool]
) -> Select[tuple[str, str, int, int, int | None]]:
    # By the index of what is to be brought: a topic may have any number of other rows.
    return (
        select(jobs.c.topic, jobs.c.id, jobs.c.revision, jobs.c.state, jobs.c.relay_ms)
        .where(not_by_index(connection, jobs.c.namespace) == namespace, *where)
        .order_by(jobs.c.relay_ms)
    )


def _open(rows: Subquery) -> ColumnElement[bool]:
    return rows.c.state == JobState.scheduled.value
