"""
Looking at jobs on both sides alike: those that the queue holds, and those that wait in the record.
"""

from __future__ import annotations

import re
from functools import partial
from heapq import merge
from math import inf
from typing import TYPE_CHECKING

from sqlalchemy import select, tuple_

from duly.errors import UsageError
from duly.job import JobState
from duly.record.rows import FIRST_REVISION, JobRow, job_of, next_revision
from duly.record.stored import find
from duly.record.tables import jobs
from duly.views import PAGE, Page, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from duly.job import Job, JobKey
    from duly.record.clock import Clock
    from duly.record.database import Database
    from duly.store import Store

Place = tuple[int, str, str]  #: of a row among those that wait: when it is to be brought, its topic and id
Step = tuple[Place | str, "Job | None"]  #: a place in the record or in the queue, and what to list there

_START: Place = (1 - 10**18, "", "")
_CURSOR = re.compile(
    r"(?:record:(-?[0-9]{1,18}) ([\w.-]*)/([\w.~:@=+-]*) )?([0-9]{1,5}:(?:[0-9]{1,17} \S+)?)", re.ASCII
)


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
        Jobs in one state, a page at a time; what is scheduled in the queue and in the record, soonest first.

        Both are merged by due time.  A job that comes within the horizon meanwhile keeps its place in that
        order, so that it is not missed; one that was listed before may be listed again.

        Raises:
            UsageError: The cursor is not one of ours.
        """
        if state is not JobState.scheduled:
            return await super().page(state, topic, cursor=cursor, limit=limit)
        behind, cursor = _read_cursor(cursor)
        if _due_ms(cursor) == inf:
            # The record was gone through with the first shard: what came to others since is met there.
            return await super().page(state, topic, cursor=cursor, limit=limit)
        limit = max(1, min(limit, PAGE))
        # First the record, then the queue: a job may go from one to the other between the two, not back.
        work = partial(waiting, namespace=self._store.namespace, topic=topic, after=behind, limit=limit)
        rows = await self._database.read(work)
        there = await Views.get_many(self, [row.key for row in rows])
        page = await super().page(state, topic, cursor=cursor, limit=limit)
        hot = {job.key for job in (*there, *page.jobs) if job is not None}
        now = self._clock.now()
        cold = [None if row.key in hot else job_of(row, now) for row in rows]
        return _merged(behind, cursor, list(zip(map(_place, rows), cold, strict=True)), page, limit)


def waiting(
    connection: Connection, namespace: str, topic: str | None, after: Place, limit: int
) -> list[JobRow]:
    """
    Rows of jobs that the queue has not been given yet, soonest first.
    """
    place = tuple_(jobs.c.relay_ms, jobs.c.topic, jobs.c.id)
    where = [
        jobs.c.namespace == namespace,
        jobs.c.relay_ms.is_not(None),
        jobs.c.state == JobState.scheduled,
        jobs.c.relay_ms >= after[0],
        place > tuple_(*after),
    ]
    if topic is not None:
        where.append(jobs.c.topic == topic)
    found = connection.execute(
        select(jobs).where(*where).order_by(jobs.c.relay_ms, jobs.c.topic, jobs.c.id).limit(limit)
    )
    return list(map(JobRow._make, found))


def _merged(behind: Place, cursor: str, rows: list[Step], page: Page, limit: int) -> Page:
    """
    Rows from a place on and a page of the queue from a cursor on, soonest first, as far as both were read.
    """
    end = page.cursor or ""
    queue: list[Step] = [*zip(page.places, page.jobs, strict=True), (end, None)]
    # Behind a page of rows that is full there may be more.
    ends = [end, *(place for place, _ in rows[limit - 1 :])]
    found: list[Job] = []
    places: list[str] = []
    # At the same time the rows come first: none may get into the queue where this list has been.
    for place, job in merge(rows, queue, key=lambda step: _due_ms(step[0])):
        if isinstance(place, str):
            cursor = place
        else:
            behind = place
        if job is not None:
            found.append(job)
            places.append(_join(behind, cursor))
        if place in ends or len(found) == limit:
            break
    return Page(found, _join(behind, cursor) or None, places)


def _place(row: JobRow) -> Place:
    return row.relay_ms or 0, row.topic, row.id


def _due_ms(place: Place | str) -> float:
    """
    How far a place in the record is, or a cursor of the first shard; those of others are behind all.
    """
    if not isinstance(place, str):
        return place[0]
    shard, _, at = place.partition(":")
    return int(at.partition(" ")[0] or 0) if shard == "0" else inf


def _join(behind: Place, cursor: str) -> str:
    """
    The cursor of a list of both; of the queue alone where the record was gone through.
    """
    relay_ms, topic, id_ = behind
    return cursor if _due_ms(cursor) == inf else f"record:{relay_ms} {topic}/{id_} {cursor}"


def _read_cursor(cursor: str | None) -> tuple[Place, str]:
    """
    A place in the record, and a cursor of the queue.
    """
    if cursor is None:
        return _START, "0:"
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise UsageError(f"{cursor!r} is not a cursor of this list: pass the one that the page before gave")
    relay_ms, topic, id_, of_queue = found.groups()
    return (_START if relay_ms is None else (int(relay_ms), topic, id_)), of_queue
