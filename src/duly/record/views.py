"""
Looking at jobs on both sides alike: those that the queue holds, and those that wait in the record.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from heapq import merge
from math import inf
from typing import TYPE_CHECKING

from sqlalchemy import select, tuple_

from duly.errors import RecordUnavailable, StoreUnavailable
from duly.job import JobState
from duly.record.dialects import not_by_index
from duly.record.rows import JobRow, job_of, next_revision
from duly.record.stored import find
from duly.record.tables import jobs
from duly.record.unbrought import far_times, far_topics
from duly.views import (
    PAGE,
    Page,
    TopicStats,
    Views,
    check_cursor,
    check_job,
    check_keys,
    check_list,
    wrong_cursor,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from duly.job import Job, JobKey
    from duly.record.clock import Clock
    from duly.record.database import Database
    from duly.record.unbrought import FarTopic
    from duly.store import Store
    from duly.views import Stats

log = logging.getLogger("duly.record")

COUNTED = 100_000  #: rows beyond the horizon that a count looks at

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
        self._absence = clock.absence

    async def get_many(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """
        Jobs as they are now: far ahead in the record, or past there, where the queue knows of none.

        While the queue is away they are told as their rows have them.

        Raises:
            StoreUnavailable: The queue is away, and of one of the jobs there is no row.
        """
        keys = check_keys(keys)
        try:
            found = await self._absence.ask(partial(super().get_many, keys))
        except StoreUnavailable:
            found = await self._of_rows(keys)
            if None in found:
                raise
            return found
        absent = [key for key, job in zip(keys, found, strict=True) if job is None or _is_trace(job)]
        if not absent:
            return found
        rows = await self._database.read(partial(find, namespace=self._store.namespace, keys=absent))
        return [self._job(job, rows.get(key)) for key, job in zip(keys, found, strict=True)]

    async def _of_rows(self, keys: Sequence[JobKey]) -> list[Job | None]:
        rows = await self._database.read(partial(find, namespace=self._store.namespace, keys=keys))
        return [self._job(None, rows.get(key)) for key in keys]

    def _job(self, job: Job | None, row: JobRow | None) -> Job | None:
        if row is None:
            return job
        if job is None:
            return self.resolve(job_of(row, self._clock.now()))
        if row.revision != job.revision:
            return job
        promised = job_of(row, self._clock.now())
        found = replace(
            job,
            payload=promised.payload,
            envelope=promised.envelope,
            ttr_ms=promised.ttr_ms,
            expires_ms=promised.expires_ms,
            retain_s=promised.retain_s,
            outcome=job.outcome or promised.outcome,
        )
        return self.resolve(found)

    async def newest(self) -> list[int]:
        """
        The newest numbers there are, for `changed`: of each shard, and last the one that a row would get now.

        By the server's clock as this machine knows it: what another sent just now may count as changed.
        """
        return [*await super().newest(), next_revision(self._clock.now())]

    def changed(self, job: Job, newest: Sequence[int]) -> bool:
        """
        Whether a job was sent or changed after `newest` was asked; its runs do not count.
        """
        check_job(job)
        return job.revision > newest[-1]

    async def stats(self) -> Stats:
        """
        Counters, workers and what is overdue; what waits beyond the horizon is scheduled, too.

        Of more than `COUNTED` such rows the soonest are counted.  While the database is away it is none.
        """
        found = await super().stats()
        work = partial(
            far_topics,
            namespace=self._store.namespace,
            far_ms=self._clock.now().far_ms,
            limit=COUNTED,
        )
        try:
            far = await self._database.read(work)
        except RecordUnavailable as error:
            log.warning("what waits beyond the horizon is not counted: %s", error)
            return found
        return _with_far(found, far)

    async def due_counts(self, bounds: Sequence[int]) -> list[int]:
        """
        How many scheduled jobs are due from each of *bounds* on and before the next, in milliseconds.

        Of each shard the hundred topics are counted that are due first, of the rows the next `COUNTED`.
        """
        counts = await super().due_counts(bounds)
        far_ms = self._clock.now().far_ms
        if bounds[-1] <= far_ms:
            return counts
        work = partial(
            far_times,
            namespace=self._store.namespace,
            from_ms=max(bounds[0], far_ms),
            until_ms=bounds[-1],
            limit=COUNTED,
        )
        for due_ms in await self._database.read(work):
            counts[bisect_right(bounds, due_ms) - 1] += 1
        return counts

    async def page(
        self, state: JobState, topic: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """
        Jobs in one state, a page at a time; what is scheduled in the queue and in the record, soonest first.

        Both are merged by due time.  A job that comes within the horizon meanwhile keeps its place in that
        order, so that it is not missed; one that was listed before may be listed again.

        Raises:
            UsageError: The cursor is not one of ours, or the state, topic or limit is none.
        """
        state, limit = check_list(state, topic, limit)
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
        cold = [None if row.key in hot else self.resolve(job_of(row, now)) for row in rows]
        return _merged(behind, cursor, list(zip(map(_place, rows), cold, strict=True)), page, limit)


def _is_trace(job: Job) -> bool:
    """
    Whether the queue keeps of an ended job no more than that it ended: every payload is some JSON.
    """
    return job.state.ended and not job.payload


def _with_far(found: Stats, far: dict[str, FarTopic]) -> Stats:
    topics = {about.topic: about for about in found.topics}
    for topic, (count, _) in far.items():
        about = topics.get(topic) or TopicStats(topic, {state.name: 0 for state in JobState})
        counts = about.counts | {"scheduled": about.counts["scheduled"] + count}
        topics[topic] = replace(about, counts=counts)
    soonest = [found.next_due_ms, *(soonest_ms for _, soonest_ms in far.values())]
    return replace(
        found,
        topics=[topics[topic] for topic in sorted(topics)],
        next_due_ms=min((each for each in soonest if each is not None), default=None),
    )


def waiting(
    connection: Connection, namespace: str, topic: str | None, after: Place, limit: int
) -> list[JobRow]:
    """
    Rows of jobs that the queue has not been given yet, soonest first.
    """
    place = tuple_(jobs.c.relay_ms, jobs.c.topic, jobs.c.id)
    where = [
        not_by_index(connection, jobs.c.namespace) == namespace,
        jobs.c.relay_ms.is_not(None),
        jobs.c.state == JobState.scheduled,
        jobs.c.relay_ms >= after[0],
        place > tuple_(*after),
    ]
    if topic is not None:
        where.append(not_by_index(connection, jobs.c.topic) == topic)
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
    cursor = check_cursor(cursor)
    if cursor is None:
        return _START, "0:"
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise wrong_cursor(cursor)
    relay_ms, topic, id_, of_queue = found.groups()
    return (_START if relay_ms is None else (int(relay_ms), topic, id_)), of_queue
