"""
Marks: rows that Redis has been given, noted together a moment later.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.loops import start_beside
from duly.record.batches import run_batch
from duly.record.crashpoints import crash_point
from duly.record.generations import still_counts
from duly.record.watermarks import raise_watermarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from duly.events import Offset
    from duly.job import JobKey
    from duly.record.database import Database

log = logging.getLogger("duly.relay")

LINGER_S = 0.05  #: how long marks wait for others: what ends meanwhile needs none
AT_ONCE = 500


def mark(
    connection: Connection,
    namespace: str,
    given: Iterable[tuple[JobKey, int]],
    generation: int,
    offsets: Mapping[int, Offset],
) -> None:
    """
    Note that Redis has been given rows at a revision; one that has changed since is left to the next look.

    With them goes how far the events of their shards were: if Redis loses that, it has lost some of them.
    All are left to the next look if another generation of Redis has begun since.
    """
    if not still_counts(connection, namespace, generation):
        return
    rows = [{"topic": key.topic, "id": key.id, "revision": revision} for key, revision in given]
    run_batch(connection, "mark", {"namespace": namespace, "generation": generation}, rows)
    raise_watermarks(connection, namespace, offsets)


class Marks:
    """
    Marks of one process that are not written yet.  One that is lost costs a second look at its row.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._waiting: dict[JobKey, tuple[int, int]] = {}
        self._offsets: dict[int, dict[int, Offset]] = {}  #: by generation, the latest of each shard
        self._marker: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def add(
        self, given: Sequence[tuple[JobKey, int]], generation: int, offsets: Mapping[int, Offset]
    ) -> None:
        """
        Mark rows soon: Redis of *generation* has been given them at these revisions, up to these events.
        """
        latest = self._offsets.setdefault(generation, {})
        for shard, offset in offsets.items():
            # Answers may overtake each other.
            if shard not in latest or latest[shard].counter < offset.counter:
                latest[shard] = offset
        for key, revision in given:
            self._waiting[key] = (revision, generation)
        if self._waiting and (self._marker is None or self._marker.done()):
            self._marker = start_beside(self._write_all())

    async def settle(self) -> None:
        """
        Wait until there are none left, or they cannot be written; they wait no longer for others.
        """
        self._hurry.set()
        # One that the end of the loop cancels before it begins is done, and never says so itself.
        while self._marker is not None and not self._marker.done():
            await asyncio.wait([self._marker])
        self._hurry.clear()

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self._hurry.wait()
                await self._write_some()
        except DulyError as error:
            # The next look finds these rows, and Redis says that it has them.
            self._waiting.clear()
            log.warning("could not mark rows that Redis has: %s", error)
        finally:
            self._marker = None

    async def _write_some(self) -> None:
        by_generation: dict[int, list[tuple[JobKey, int]]] = {}
        for key in list(self._waiting)[:AT_ONCE]:
            revision, generation = self._waiting.pop(key)
            by_generation.setdefault(generation, []).append((key, revision))

        offsets = {generation: dict(self._offsets[generation]) for generation in by_generation}
        for former in self._offsets.keys() - by_generation.keys():
            del self._offsets[former]

        def work(connection: Connection) -> None:
            for generation, given in by_generation.items():
                mark(connection, self._namespace, given, generation, offsets[generation])
            crash_point("mark.written")

        await self._database.write(work)
        crash_point("mark.committed")
