"""
Retention: rows of jobs that ended long ago go, with what is known of their runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from duly.job import JobState
from duly.record.tables import attempts, jobs

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from duly.record.clock import Clock
    from duly.record.database import Database

EVERY_S = 60.0
AT_ONCE = 500  #: rows of one transaction, so that nobody waits long for it


class Retention:
    """
    Takes away rows of ended jobs by their age.
    """

    every_s = EVERY_S

    def __init__(self, database: Database, namespace: str, *, keep_ms: int, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._keep_ms = keep_ms
        self._clock = clock

    async def run_once(self) -> int:
        """
        Take away some of what is past its time: how many rows that were.

        Raises:
            RecordUnavailable: The database cannot be reached.
        """
        before_ms = self._clock.now().floor_ms - self._keep_ms
        return await self._database.write(partial(drop_ended, namespace=self._namespace, before_ms=before_ms))


def drop_ended(connection: Connection, namespace: str, before_ms: int) -> int:
    """
    Delete rows of jobs that ended before a time, and those of their runs, as many as go into a transaction.
    """
    old = connection.execute(
        select(jobs.c.topic, jobs.c.id)
        .where(
            jobs.c.namespace == namespace,
            jobs.c.changed_ms < before_ms,
            jobs.c.state > JobState.running,
            # The queue has heard of it: nobody needs the row any more.
            jobs.c.relay_ms.is_(None),
        )
        .order_by(jobs.c.changed_ms)
        .limit(AT_ONCE)
        .with_for_update(skip_locked=True)
    ).all()
    by_topic: dict[str, list[str]] = {}
    for topic, id_ in old:
        by_topic.setdefault(topic, []).append(id_)
    for topic, ids in by_topic.items():
        for table in (attempts, jobs):
            connection.execute(
                delete(table).where(
                    table.c.namespace == namespace, table.c.topic == topic, table.c.id.in_(ids)
                )
            )
    return len(old)
