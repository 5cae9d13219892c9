"""
Retention: rows of jobs that ended long ago go, with what is known of their runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import and_, func, select

from duly.job import JobKey, JobState
from duly.record.dialects import delete_rows
from duly.record.pages import Place, page_of, place_behind
from duly.record.tables import attempts, jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from duly.record.clock import Clock
    from duly.record.database import Database

EVERY_S = 60.0
AT_ONCE = 500  #: rows of one transaction, so that nobody waits long for it
PAGES = 50  #: that are looked at in one step in vain, before the next one goes on behind them


class Retention:
    """
    Takes away rows of ended jobs by their age.

    They are found by the time of the last call for their job, the longest ago first: no index tells when it
    ended.  Jobs that were asked for long ago and have not ended are met on every round, some at a time.
    """

    every_s = EVERY_S

    def __init__(self, database: Database, namespace: str, *, keep_ms: int, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._keep_ms = keep_ms
        self._clock = clock
        self._after: Place | None = None

    async def run_once(self) -> int:
        """
        Take away some of what is past its time: how many rows that were.

        Raises:
            RecordUnavailable: The database cannot be reached.
        """
        before_ms = self._clock.now().floor_ms - self._keep_ms
        for _ in range(PAGES):
            look = partial(past, namespace=self._namespace, before_ms=before_ms, after=self._after)
            keys, self._after = await self._database.read(look)
            if keys:
                drop = partial(drop_ended, namespace=self._namespace, before_ms=before_ms, keys=keys)
                return await self._database.write(drop)
            if self._after is None:
                break
        return 0


def past(
    connection: Connection, namespace: str, before_ms: int, after: Place | None
) -> tuple[list[JobKey], Place | None]:
    """
    Which jobs on a page of rows ended before a time, and where the page ends, None if it is the last one.
    """
    page = page_of(jobs.c.changed_ms, namespace, after or Place(0), AT_ONCE, _past(before_ms).label("past"))
    rows = connection.execute(page.where(jobs.c.changed_ms < before_ms)).all()
    return [JobKey(row.topic, row.id) for row in rows if row.past], place_behind(rows, AT_ONCE)


def drop_ended(connection: Connection, namespace: str, before_ms: int, keys: Sequence[JobKey]) -> int:
    """
    Delete those rows of *keys* whose jobs ended before a time, and the rows of their runs; how many jobs.
    """
    by_topic: dict[str, list[str]] = {}
    for key in sorted(keys):
        by_topic.setdefault(key.topic, []).append(key.id)
    dropped = 0
    for topic, some in by_topic.items():
        named = jobs.c.namespace == namespace, jobs.c.topic == topic, jobs.c.id.in_(some)
        # Anybody may have asked for one again meanwhile: from here on nobody can.
        still = select(jobs.c.id).where(*named, _past(before_ms)).with_for_update(skip_locked=True)
        ids = connection.scalars(still).all()
        for table in (attempts, jobs):
            delete_rows(connection, table, {"namespace": namespace, "topic": topic}, "id", ids)
        dropped += len(ids)
    return dropped


def _past(before_ms: int) -> ColumnElement[bool]:
    return and_(
        jobs.c.changed_ms < before_ms,
        func.coalesce(jobs.c.ended_ms, jobs.c.changed_ms) < before_ms,
        jobs.c.state > JobState.running,
        # The queue has heard of it: nobody needs the row any more.
        jobs.c.relay_ms.is_(None),
    )
