"""
What a queue has lost comes back: open rows of the shards that were behind, by due time, a page at a time.

The rows stay as they are.  How far it has come is kept beside the generation, where another process goes on.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select, update

from duly.job import JobKey, JobState, shard_of
from duly.record.generations import still_counts
from duly.record.pages import Place, page_of, place_behind
from duly.record.stored import find
from duly.record.tables import generations, jobs
from duly.record.watermarks import raise_watermarks

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from duly.record.clock import Clock
    from duly.record.database import Database
    from duly.record.relay import Relay
    from duly.record.rows import JobRow
    from duly.store import Store

log = logging.getLogger("duly.record")

AT_ONCE = 500  #: rows of one page
LATER, EARLIER = 1, 2  #: the passes: what is due from shortly before the loss on, then what was due before


class Progress(NamedTuple):
    """
    How far a generation's rows were brought back.
    """

    generation: int
    lost: tuple[int, ...]
    now_pass: int | None  #: None where all were
    from_ms: int
    place: Place
    brought: int


class BringBack:
    """
    Brings back what was lost, as the leader of the namespace.
    """

    every_s = 0.5

    def __init__(
        self,
        database: Database,
        store: Store,
        relay: Relay,
        clock: Clock,
        *,
        generation: Callable[[], int | None],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._database = database
        self._store = store
        self._relay = relay
        self._clock = clock
        self._generation = generation
        self._leads = leads
        self._told = 0

    async def run_once(self) -> int:
        """
        Bring back a page; how many rows were looked at.

        Raises:
            DulyError: Redis or the database is away.
        """
        generation = self._generation()
        if generation is None or not self._leads():
            return 0
        pending = await self.pending()
        if not pending:
            return 0
        if self._told != pending[0].generation:
            self._told = pending[0].generation
            log.warning("bringing back what the queue has lost: see `duly record status`")
        return await self._page(pending[0], generation)

    async def pending(self) -> list[Progress]:
        """
        Return how far the generations have come whose rows are not all back, the newest first.

        Raises:
            RecordUnavailable: The database cannot be reached.
        """
        return await self._database.read(partial(progress_of, namespace=self._store.namespace))

    async def _page(self, progress: Progress, generation: int) -> int:
        read_ms = self._clock.now().floor_ms
        rows, found, behind = await self._database.read(partial(self._select, progress=progress))
        offsets = await self._relay.bring(found, generation, read_ms=read_ms) if found else {}
        namespace = self._store.namespace

        def work(connection: Connection) -> None:
            # What was brought counts for this generation only.
            if still_counts(connection, namespace, generation):
                raise_watermarks(connection, namespace, offsets)
                move(connection, namespace, progress, behind, len(found))

        await self._database.write(work)
        if behind is None and progress.now_pass == EARLIER:
            log.warning("%d open jobs were brought back to the queue", progress.brought + len(found))
        return rows or 1

    def _select(self, connection: Connection, progress: Progress) -> tuple[int, list[JobRow], Place | None]:
        """
        How many rows the next page has, those that the queue is to have, and where the page ends.
        """
        page = page_of(
            jobs.c.due_ms, self._store.namespace, progress.place, AT_ONCE, jobs.c.state, jobs.c.relay_ms
        )
        if progress.now_pass == EARLIER:
            page = page.where(jobs.c.due_ms < progress.from_ms)
        rows = connection.execute(page).all()
        wanted = [
            key
            for key, row in ((JobKey(row.topic, row.id), row) for row in rows)
            if row.state == JobState.scheduled
            # Others are brought by the relay, when their time comes.
            and row.relay_ms is None
            and shard_of(*key, self._store.shards) in progress.lost
        ]
        standing = find(connection, self._store.namespace, wanted)
        found = [standing[key] for key in wanted if key in standing and not standing[key].ended]
        return len(rows), found, place_behind(rows, AT_ONCE)


def progress_of(connection: Connection, namespace: str, *, all_: bool = False) -> list[Progress]:
    """
    How far generations that found a loss have come, the newest first; without *all_* those that are not done.
    """
    columns = generations.c
    statement = (
        select(
            *(columns.generation, columns.lost, columns.back_pass, columns.back_from_ms),
            *(columns.back_ms, columns.back_topic, columns.back_id, columns.brought_back),
        )
        .where(columns.namespace == namespace)
        .order_by(columns.generation.desc())
    )
    if not all_:
        statement = statement.where(columns.back_pass.is_not(None))
    return [
        Progress(number, tuple(json.loads(lost)), now_pass, from_ms, Place(at_ms, topic, id_), brought)
        for number, lost, now_pass, from_ms, at_ms, topic, id_, brought in connection.execute(statement)
        if lost != "[]"
    ]


def move(
    connection: Connection, namespace: str, progress: Progress, behind: Place | None, brought: int
) -> None:
    """
    Note that a page was brought back; *behind* is where it ends, None for the last of its pass.
    """
    columns = generations.c
    now_pass = progress.now_pass
    if behind is None:
        now_pass, behind = (EARLIER, Place(-(2**62))) if now_pass == LATER else (None, progress.place)
    connection.execute(
        update(generations)
        .where(
            columns.namespace == namespace,
            columns.generation == progress.generation,
            columns.back_pass == progress.now_pass,
            columns.back_ms == progress.place.at_ms,
            columns.back_topic == progress.place.topic,
            columns.back_id == progress.place.id,
        )
        .values(
            back_pass=now_pass,
            back_ms=behind.at_ms,
            back_topic=behind.topic,
            back_id=behind.id,
            brought_back=columns.brought_back + brought,
        )
    )
