"""
The ending of a job, written in the transaction of its handler: statements, and no connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, text, update

from duly.errors import LeaseLost, Unsupported
from duly.job import JobState
from duly.record.dialects import insert_absent
from duly.record.stored import find
from duly.record.tables import attempts, jobs

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from duly.job import JobKey
    from duly.record.rows import JobRow
    from duly.record.runs import EndedRun

LOCK_WAITS = "SET LOCAL lock_timeout = '10s'"  #: of PostgreSQL, which waits without end if nothing is said


def check_open(connection: Connection, namespace: str, key: JobKey, revision: int) -> None:
    """
    Make sure that a run at this revision can still end its job.

    Raises:
        LeaseLost: The row says that the job has ended, or was replaced, rescheduled or requeued.
        Unsupported: The record has no such revision of the job.
    """
    row = connection.execute(select(jobs.c.state, jobs.c.revision).where(*_named(namespace, key))).first()
    if row is None or row.revision < revision:
        raise Unsupported(
            f"{key} has no row in the record at revision {revision}, so no transaction can end it: send it "
            "through an app that has the record; `duly record reconcile` gives it a row"
        )
    if row.revision > revision:
        raise LeaseLost(f"{key} was changed in the record after this run was claimed")
    if row.state != JobState.scheduled:
        raise LeaseLost(f"{key} has ended in the record already: it is {JobState(row.state).name}")


def write_ending(connection: Connection, namespace: str, run: EndedRun) -> bool:
    """
    End the job of a run, and write the row of the run; False if the job is not open at the run's revision.

    Which memory of the queue the run comes from does not matter: the first run to commit wins.
    """
    still_open = jobs.c.revision == run.revision, jobs.c.state == JobState.scheduled.value
    ended = connection.execute(
        update(jobs)
        .where(*_named(namespace, run.key), *still_open)
        .values(
            state=run.state.value,
            outcome=run.outcome or None,
            attempts=run.attempts,
            crashes=run.crashes,
            started_ms=run.started_ms or None,
            ended_ms=run.ended_ms,
            lateness_ms=run.lateness_ms,
            hydrated=jobs.c.revision,
            relay_ms=None,
        )
    )
    if ended.rowcount != 1:
        return False
    insert_absent(connection, attempts, [{"namespace": namespace} | run.attempt_row()])
    return True


def was_written(connection: Connection, namespace: str, run: EndedRun) -> bool:
    """
    Return whether the transaction that wrote this ending was committed; False if it was rolled back.

    The row is locked, so an earlier transaction on a lost connection is over once this returns.

    Raises:
        LeaseLost: It was rolled back, and the job has ended or changed otherwise.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(LOCK_WAITS))
    row = find(connection, namespace, [run.key], lock=True).get(run.key)
    if _is_of(row, run) or _has_attempt(connection, namespace, run):
        return True
    if row is None or row.ended or row.revision != run.revision:
        raise LeaseLost(f"{run.key} was ended or changed in the record by somebody else")
    return False


def _is_of(row: JobRow | None, run: EndedRun) -> bool:
    """
    Return whether a row has the ending of this run.
    """
    return (
        row is not None
        and (row.revision, row.state, row.started_ms, row.ended_ms)
        == (run.revision, run.state.value, run.started_ms or None, run.ended_ms)
        and bytes(row.outcome or b"") == run.outcome
    )


def _has_attempt(connection: Connection, namespace: str, run: EndedRun) -> bool:
    """
    Return whether the run has its own row, also if the job was requeued or replaced after it ended.
    """
    columns = attempts.c
    found = connection.execute(
        select(columns.worker, columns.word, columns.revision, columns.ended_ms).where(
            columns.id == run.key.id,
            columns.token == run.token,
            columns.topic == run.key.topic,
            columns.namespace == namespace,
        )
    ).first()
    return found is not None and tuple(found) == (run.worker, run.word, run.revision, run.ended_ms)


def _named(namespace: str, key: JobKey) -> tuple[ColumnElement[bool], ...]:
    return jobs.c.namespace == namespace, jobs.c.topic == key.topic, jobs.c.id == key.id
