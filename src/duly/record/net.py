"""
The net below the workers: reads the events of Redis for endings that are not in the record yet.

A worker writes what became of its jobs itself.  One that died in between did not, and a job
that expired, was cancelled by a script or crashed too often had no worker that could.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from duly.events import Verb, rows_of
from duly.feed import EventsLost, Feed
from duly.job import JobKey
from duly.record.caught import counted_run, ended_run
from duly.record.crashpoints import crash_point
from duly.record.generations import newest_generation
from duly.record.outcomes import write_runs
from duly.record.places import Place, move, place_of
from duly.record.stored import pick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection

    from duly.events import Offset, Packed, Row
    from duly.record.database import Database
    from duly.record.runs import EndedRun
    from duly.store import Store

log = logging.getLogger("duly.net")

CONSUMER = "record"
EVERY_S = 1.0
SETTLE_MS = 2_000  #: how long workers have for writing outcomes themselves
AT_ONCE = 100  #: script calls whose events are looked at together

_ENDINGS = frozenset({Verb.acked, Verb.buried, Verb.cancelled})
_COUNTED = frozenset({Verb.retried, Verb.recovered})


class Net:
    """
    Follows the events of all shards, as the leader.  Two may for a moment: the first to move a position wins.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        *,
        generation: Callable[[], int | None],
        every_s: float = EVERY_S,
        settle_ms: int = SETTLE_MS,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Prepare: *generation* tells which one Redis belongs to, or None while nobody has found it sound.
        """
        self.every_s = every_s
        self._database = database
        self._store = store
        self._feed = Feed(store)
        self._generation = generation
        self._settle_ms = settle_ms
        self._leads = leads
        self._told_lost: set[Offset | None] = set()
        self._young_ms: dict[int, int] = {}  #: for each shard the time of the first event that was too young

    async def run_once(self) -> int:
        """
        Follow every shard by some steps; how many script calls were looked at.

        Raises:
            DulyError: Redis or the database is away.
        """
        seen = 0
        for shard in range(self._store.shards):
            seen += await self.follow(shard)
        return seen

    async def run(self, stop: asyncio.Event) -> None:
        """
        Follow until *stop* is set.  Errors are the caller's to survive.
        """
        while not stop.is_set():
            if not await self.run_once():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.every_s):
                        await stop.wait()

    async def follow(self, shard: int) -> int:
        """
        Look at the next events of a shard; how many script calls that were.

        Raises:
            DulyError: Redis or the database is away.
        """
        generation = self._generation()
        if generation is None or not self._leads():
            return 0
        if await self._database.read(partial(self._former, generation=generation)):
            return 0
        place = await self._database.read(partial(place_of, namespace=self._store.namespace, shard=shard))
        entries = await self._next(shard, place)
        if not entries:
            return 0
        runs = await self._catch(entries)
        seen, behind = await self._database.write(
            lambda connection: self._write(connection, shard, generation, place, entries, runs)
        )
        if behind is not None:
            await self._confirm(shard, behind)
        return seen

    def _former(self, connection: Connection, generation: int) -> bool:
        """
        Whether the queue was found to be behind since: rows would not take what is said for a former one, and
        the place would move all the same.
        """
        newest = newest_generation(connection, self._store.namespace)
        return newest is not None and newest.number != generation

    # -- events -------------------------------------------------------------------------------------------

    async def _next(self, shard: int, place: Place | None) -> list[Packed]:
        """
        The events behind a place that are old enough for workers to have told the record themselves.
        """
        if place is None:
            # From now on nothing is trimmed before it was looked at.
            await self._feed.commit(CONSUMER, shard, None)
        seconds, micros = await self._store.link.call("TIME")
        until_ms = self._store.now_ms(int(seconds) * 1000 + int(micros) // 1000) - self._settle_ms
        if until_ms < self._young_ms.get(shard, 0) <= until_ms + self._settle_ms:
            # Megabytes, of a busy queue, that would be read in vain.
            return []
        try:
            entries = await self._feed.packed(shard, place and place.offset, AT_ONCE + 1)
        except EventsLost as error:
            entries = await self._behind_gap(shard, error)
        else:
            entries = entries[1:] if place else entries[:AT_ONCE]
        crash_point("net.read")
        old = list(takewhile(lambda entry: entry.at_ms <= until_ms, entries))
        self._young_ms[shard] = entries[len(old)].at_ms if len(old) < len(entries) else 0
        return old

    async def _behind_gap(self, shard: int, error: EventsLost) -> list[Packed]:
        if error.after not in self._told_lost:
            self._told_lost.add(error.after)
            log.error("%s; what ended meanwhile is found by `duly record reconcile`", error)
        if error.first is None:
            # Redis is behind the record, or empty: whoever finds it sound again says where to go on.
            return []
        with suppress(EventsLost):  # trimmed on, meanwhile: the next step looks again
            return await self._feed.packed(shard, await self._feed.first(shard), AT_ONCE)
        return []

    async def _catch(self, entries: Sequence[Packed]) -> list[EndedRun]:
        ended: dict[JobKey, Packed] = {}
        runs: list[EndedRun] = []
        for entry in entries:
            ended |= dict.fromkeys(_ended_in(entry), entry)
            if any(verb in _COUNTED for verb, _ in entry.counts):
                runs += [counted_run(row, entry.at_ms) for row in rows_of(entry) if row.verb in _COUNTED]
        # Nearly all of them were written by their workers: only what was not is taken apart.
        still_open = await self._database.read(partial(self._open, keys=ended))
        ends = [
            row
            for entry in {ended[key].offset: ended[key] for key in still_open}.values()
            for row in rows_of(entry)
            if row.verb in _ENDINGS and row.head.revision == still_open.get(row.key)
        ]
        return runs + await self._ended(ends)

    def _open(self, connection: Connection, keys: Iterable[JobKey]) -> dict[JobKey, int]:
        """
        Those whose rows are still open, and at which revision.
        """
        found = pick(connection, ("topic", "id", "revision"), self._store.namespace, keys, still_open=True)
        return {JobKey(topic, id_): revision for topic, id_, revision in found}

    async def _ended(self, rows: Sequence[Row]) -> list[EndedRun]:
        """
        What became of jobs, as Redis still knows it; prune spares them until it is written.
        """
        found = await self._store.get([row.key for row in rows])
        return [ended_run(row, about) for row, about in zip(rows, found, strict=True)]

    # -- the record ---------------------------------------------------------------------------------------

    def _write(
        self,
        connection: Connection,
        shard: int,
        generation: int,
        before: Place | None,
        entries: Sequence[Packed],
        runs: Sequence[EndedRun],
    ) -> tuple[int, Place | None]:
        """
        Tell the record: behind how many events its place is then, and the place, None if it has not moved.

        Others may have been quicker, with fewer events.  Rows that somebody else has locked are passed over,
        and the place stays in front of what told of them.
        """
        namespace = self._store.namespace
        told = [(run, generation) for run in runs]
        locked = write_runs(connection, namespace, told, skip_locked=True)
        crash_point("net.written")
        done = (
            list(takewhile(lambda entry: locked.isdisjoint(_jobs_in(entry)), entries)) if locked else entries
        )
        if not done:
            return 0, None
        behind = Place(done[-1].offset, done[-1].at_ms)
        moved = move(connection, namespace, shard, before, behind)
        crash_point("net.moved")
        return len(done), behind if moved else None

    async def _confirm(self, shard: int, place: Place) -> None:
        """
        Tell Redis how far the record has come: it may trim events and prune jobs up to there.
        """
        crash_point("net.committed")
        await self._feed.commit(CONSUMER, shard, place.offset)
        meta = self._store.keys[shard].fixed["meta"]
        await self._store.link.call("HSET", meta, "recorded_ms", place.at_ms)
        crash_point("net.confirmed")


def _jobs_in(entry: Packed) -> list[JobKey]:
    return [JobKey.of(member) for member in entry.values[b"members"].decode().split("\n")]


def _ended_in(entry: Packed) -> list[JobKey]:
    """
    The jobs that ended by a script call.
    """
    if not any(verb in _ENDINGS for verb, _ in entry.counts):
        return []
    members = entry.values[b"members"].decode().split("\n")
    found: list[JobKey] = []
    at = 0
    for verb, size in entry.counts:
        if verb in _ENDINGS:
            found += map(JobKey.of, members[at : at + size])
        at += size
    return found
