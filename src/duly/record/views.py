"""
Looking at jobs on both sides alike: those that the queue holds, and those that wait in the record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import select, tuple_

from duly.codec import decode_envelope
from duly.errors import UsageError
from duly.job import Job, JobKey, JobState, Lane
from duly.record.tables import jobs
from duly.views import PAGE, Page, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from duly.job import Priority
    from duly.record.database import Database
    from duly.store import Store

_COLD = "record:"  #: how cursors begin that go on in the record


class RecordViews(Views):
    """
    Read-only questions to the queue, and to the record for what the queue does not hold.
    """

    def __init__(self, store: Store, database: Database) -> None:
        super().__init__(store)
        self._database = database

    async def get_many(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """
        Jobs as they are now: far ahead in the record, or past there, where the queue knows of none.
        """
        found = await super().get_many(keys)
        absent = [key for key, job in zip(keys, found, strict=True) if job is None]
        if not absent:
            return found
        rows = await self._database.read(partial(jobs_of, namespace=self._store.namespace, keys=absent))
        return [job or rows.get(key) for key, job in zip(keys, found, strict=True)]

    async def page(
        self, state: JobState, topic: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """
        Jobs in one state, a page at a time; after what is scheduled in the queue, what waits in the record.

        Raises:
            UsageError: The cursor is not one of ours.
        """
        if state is not JobState.scheduled:
            return await super().page(state, topic, cursor=cursor, limit=limit)
        if cursor is None or not cursor.startswith(_COLD):
            page = await super().page(state, topic, cursor=cursor, limit=limit)
            if page.cursor is not None or len(page.jobs) >= limit:
                return page if page.cursor else Page(page.jobs, _COLD, page.places)
            before, cursor = page, _COLD
        else:
            before = Page([], None)
        room = min(limit, PAGE) - len(before.jobs)
        after = _read_cursor(cursor)
        found = await self._database.read(
            partial(waiting, namespace=self._store.namespace, topic=topic, after=after, limit=room)
        )
        # One that was rescheduled a moment ago may still be in the queue: it was on an earlier page.
        there = await Views.get_many(self, [job.key for _, job in found])
        cold = [each for each, hot in zip(found, there, strict=True) if hot is None]
        places = [_place(relay_ms, job.key) for relay_ms, job in cold]
        last = _place(found[-1][0], found[-1][1].key) if len(found) == room else None
        return Page([*before.jobs, *(job for _, job in cold)], last, [*before.places, *places])


def jobs_of(connection: Connection, namespace: str, keys: Sequence[JobKey]) -> dict[JobKey, Job]:
    """
    The jobs that the rows of *keys* stand for.
    """
    found = connection.execute(
        select(jobs).where(jobs.c.namespace == namespace, tuple_(jobs.c.topic, jobs.c.id).in_(list(keys)))
    )
    return {JobKey(row.topic, row.id): job_of(row) for row in found}


def waiting(
    connection: Connection,
    namespace: str,
    topic: str | None,
    after: tuple[int, str, str] | None,
    limit: int,
) -> list[tuple[int, Job]]:
    """
    Jobs that the queue has not been given yet, soonest first.
    """
    place = tuple_(jobs.c.relay_ms, jobs.c.topic, jobs.c.id)
    where = [
        jobs.c.namespace == namespace,
        jobs.c.relay_ms.is_not(None),
        jobs.c.state == JobState.scheduled,
    ]
    if topic is not None:
        where.append(jobs.c.topic == topic)
    if after is not None:
        where += [jobs.c.relay_ms >= after[0], place > tuple_(*after)]
    found = connection.execute(
        select(jobs).where(*where).order_by(jobs.c.relay_ms, jobs.c.topic, jobs.c.id).limit(limit)
    )
    return [(row.relay_ms, job_of(row)) for row in found]


def job_of(row: Any) -> Job:
    """
    The job that a row stands for.
    """
    lane = Lane(row.lane)
    return Job(
        topic=row.topic,
        id=row.id,
        state=JobState(row.state),
        revision=row.revision,
        priority=cast("Priority", "normal" if lane is Lane.callback else lane.name),
        attempts=row.attempts,
        crashes=row.crashes,
        payload=row.payload,
        due_ms=row.due_ms,
        started_ms=row.started_ms or 0,
        ended_ms=row.ended_ms or 0,
        lateness_ms=row.lateness_ms,
        outcome=row.outcome or b"",
        ttr_ms=row.ttr_ms,
        expires_ms=row.expires_ms,
        envelope=decode_envelope(row.envelope),
    )


def _place(relay_ms: int, key: JobKey) -> str:
    return f"{_COLD}{relay_ms} {key.member}"


def _read_cursor(cursor: str) -> tuple[int, str, str] | None:
    place = cursor.removeprefix(_COLD)
    if not place:
        return None
    relay_ms, _, member = place.partition(" ")
    if not relay_ms.isdigit() or "/" not in member:
        msg = f"{cursor!r} is not a cursor of this list: pass the one that the page before gave"
        raise UsageError(msg)
    return int(relay_ms), *JobKey.of(member)
