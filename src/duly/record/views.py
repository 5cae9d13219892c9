"""
Looking at jobs on both sides alike: those that the queue holds, and those that wait in the record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import select, tuple_

from duly.errors import UsageError
from duly.job import JobKey, JobState
from duly.record.rows import FIRST_REVISION, JobRow, job_of, next_revision
from duly.record.stored import find
from duly.record.tables import jobs
from duly.views import PAGE, Page, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from duly.job import Job
    from duly.record.clock import Clock
    from duly.record.database import Database
    from duly.store import Store

_COLD = "record:"  #: how cursors begin that go on in the record


class RecordViews(Views):
    """
    Read-only questions to the queue, and to the record for what the queue does not hold.
    """

    def __init__(self, store: Store, database: Database, clock: Clock) -> None:
        super().__init__(store)
        self._database = database
        self._clock = clock

    async def get_many(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """
        Jobs as they are now: far ahead in the record, or past there, where the queue knows of none.
        """
        found = await super().get_many(keys)
        absent = [key for key, job in zip(keys, found, strict=True) if job is None]
        if not absent:
            return found
        rows = await self._database.read(partial(find, namespace=self._store.namespace, keys=absent))
        return [job or self._job(rows.get(key)) for key, job in zip(keys, found, strict=True)]

    def _job(self, row: JobRow | None) -> Job | None:
        return None if row is None else job_of(row, self._clock.now())

    async def newest(self) -> list[int]:
        """
        The newest numbers there are, for `changed`: of each shard, and last the one that a row would get now.

        That is by this machine's clock: what one whose clock is ahead sent a moment ago counts as changed.
        """
        return [*await super().newest(), next_revision()]

    def changed(self, job: Job, newest: Sequence[int]) -> bool:
        """
        Whether a job was sent or changed after `newest` was asked; its runs do not count.
        """
        if job.revision < FIRST_REVISION:
            # It was sent before there was a record.
            return super().changed(job, newest)
        return job.revision > newest[-1]

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
        there = await Views.get_many(self, [row.key for row in found])
        cold = [row for row, hot in zip(found, there, strict=True) if hot is None]
        now = self._clock.now()
        return Page(
            [*before.jobs, *(job_of(row, now) for row in cold)],
            _place(found[-1]) if len(found) == room else None,
            [*before.places, *map(_place, cold)],
        )


def waiting(
    connection: Connection,
    namespace: str,
    topic: str | None,
    after: tuple[int, str, str] | None,
    limit: int,
) -> list[JobRow]:
    """
    Rows of jobs that the queue has not been given yet, soonest first.
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
    return list(map(JobRow._make, found))


def _place(row: JobRow) -> str:
    return f"{_COLD}{row.relay_ms} {row.key.member}"


def _read_cursor(cursor: str) -> tuple[int, str, str] | None:
    place = cursor.removeprefix(_COLD)
    if not place:
        return None
    relay_ms, _, member = place.partition(" ")
    if not relay_ms.removeprefix("-").isdigit() or "/" not in member:
        msg = f"{cursor!r} is not a cursor of this list: pass the one that the page before gave"
        raise UsageError(msg)
    return int(relay_ms), *JobKey.of(member)
