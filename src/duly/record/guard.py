"""
The rollback detector: compares a queue that may have lost a part of its past with the record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import ServerUnsuitable
from duly.feed import EventsLost, Feed
from duly.record.crashpoints import crash_point
from duly.record.keys import KeptKeys
from duly.record.mending import relay_once_more
from duly.record.rules import Difference, Promised, Queued, judge
from duly.record.soundness import (
    changed_since,
    ended_since,
    first_generation,
    has_rows,
    newest_generation,
    positions_of,
    raise_generation,
)
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.job import Job
    from duly.record.database import Database
    from duly.record.soundness import Changed, Generation
    from duly.store import Store

log = logging.getLogger("duly.record")

#: In this time workers that lived through a loss of the queue write down what they had finished.
SETTLE_S = 1.0
#: Rows may be written a little later than the queue was: by clocks that differ, in groups that waited.
MARGIN_MS = 60_000


class Approval(NamedTuple):
    """
    What a shard was told when it was last found to agree; empty where it was not, or does not know any more.
    """

    record_id: str
    server_id: str
    generation: int


class Guard:
    """
    Answers for the queue: that what it hands out has not ended.
    """

    def __init__(
        self, database: Database, store: Store, *, hint: Callable[[], None], settle_s: float = SETTLE_S
    ) -> None:
        self.generation = 0  #: as it was when the queue was last found to agree
        self._database = database
        self._store = store
        self._hint = hint
        self._settle_s = settle_s
        self._keys = KeptKeys(database, store.namespace)
        self._one_at_a_time = asyncio.Lock()

    def known(self) -> int | None:
        """
        The generation of the queue that was last found to agree; None before.
        """
        return self.generation or None

    async def agree(self) -> None:
        """
        Compare the queue with the record, unless that was done since the server began, and let it be used.

        Raises:
            ServerUnsuitable: The queue belongs to another record.
            StoreUnavailable, RecordUnavailable: One of them is away: nothing is handed out meanwhile.
        """
        async with self._one_at_a_time:
            while True:
                lives = await self._store.lives()
                server_id = await self._server_id()
                generation = await self._found_sound(server_id)
                if await self._store.approve(generation.record_id, generation.number, server_id, lives):
                    break
                log.warning("another server answers than the one that was compared: comparing again")
            crash_point("guard.approved")
            self.generation = generation.number
        self._hint()

    async def _found_sound(self, server_id: str) -> Generation:
        """
        The generation that the queue belongs to, once nothing it holds as open has ended.
        """
        found = await self._newest()
        generation = found or await self._first_generation(server_id)
        known = await self._approvals()
        if any(each.record_id not in ("", generation.record_id) for each in known):
            msg = (
                f"namespace {self._store.namespace!r} at {self._store.link.place} belongs to another "
                "record than the one in the settings: check record, or choose another namespace"
            )
            raise ServerUnsuitable(msg)
        if _agreed(known, generation, server_id):
            return generation
        return await self._compare(generation, server_id, new=found is None)

    async def changed_server(self) -> bool:
        """
        Whether another server answers than the one that was compared here, for instance after a failover.

        Also if somebody else has compared it since: what is done here would count as done in a former one.
        """
        here = (await self._server_id(), self.generation)
        return any(each[1:] != here for each in await self._approvals())

    async def _server_id(self) -> str:
        text: bytes = await self._store.link.call("INFO", "server", "replication")
        facts = dict(line.partition(":")[::2] for line in text.decode(errors="replace").splitlines())
        return f"{facts.get('run_id', '')}/{facts.get('master_replid', '')}"

    async def _approvals(self) -> list[Approval]:
        """
        For each shard which record it belongs to, and which server was compared with it.
        """
        found = []
        for keys in self._store.keys:
            record_id, server_id, number = await self._store.link.call(
                "HMGET", keys.fixed["meta"], "record", "server", "generation"
            )
            found.append(Approval((record_id or b"").decode(), (server_id or b"").decode(), int(number or 0)))
        return found

    async def _newest(self) -> Generation | None:
        return await self._database.read(partial(newest_generation, namespace=self._store.namespace))

    async def _first_generation(self, server_id: str) -> Generation:
        begin = partial(
            first_generation, namespace=self._store.namespace, server_id=server_id, now_ms=_now_ms()
        )
        await self._keys.adopt(self._store)
        return await self._database.write(begin)

    async def _compare(self, generation: Generation, server_id: str, *, new: bool) -> Generation:
        """
        Find out what the queue has lost, and mend what must not be handed out as it is.

        A *new* record had no queue yet that could have lost anything.
        """
        promised = await self._database.read(partial(has_rows, namespace=self._store.namespace))
        if promised and not new:
            await asyncio.sleep(self._settle_s)
            # Others may have done all or a part of it meanwhile. To raise the generation a second time for
            # one loss would have the rows refuse what ended in between.
            generation = await self._newest() or generation
        known = await self._approvals()
        if _agreed(known, generation, server_id):
            return generation
        since_ms = await self._since_ms()
        emptied = any(not each.record_id and each.generation != generation.number for each in known)
        reason = await self._behind(emptied=emptied and promised and not new)
        if reason:
            log.critical("the queue is behind its record: %s; taking to it what has not ended", reason)
            generation = await self._database.write(
                partial(
                    raise_generation,
                    namespace=self._store.namespace,
                    was=generation,
                    server_id=server_id,
                    now_ms=_now_ms(),
                    reason=reason,
                )
            )
            for keys in self._store.keys:
                await self._store.link.call("HSET", keys.fixed["meta"], "generation", generation.number)
        crash_point("guard.raised")
        forgotten = await self._recheck(since_ms)
        if forgotten:
            log.critical("the queue held %d jobs as open that have ended: it has forgotten them", forgotten)
        await self._keys.restore(self._store)
        crash_point("guard.rechecked")
        return generation

    async def _behind(self, *, emptied: bool) -> str | None:
        """
        What shows that the queue has lost a part of its past, None if nothing does.
        """
        feed, namespace = Feed(self._store), self._store.namespace
        if emptied:
            return "it does not know of its record any more"
        read = await self._database.read(partial(positions_of, namespace=namespace))
        for shard, offset in read.items():
            try:
                await feed.entries(shard, offset, 1)
            except EventsLost as lost:
                return str(lost)
        return None

    async def _since_ms(self) -> int | None:
        """
        When the queue's memory ends, at the latest; None if it has none.
        """
        feed = Feed(self._store)
        newest = [await feed.newest(shard) for shard in range(self._store.shards)]
        last_ms = [entry[1][0].at_ms for entry in newest if entry]
        return max(min(last_ms) - MARGIN_MS, 0) if last_ms else None

    async def _recheck(self, since_ms: int | None) -> int:
        """
        Compare, job by job, the rows that were changed since: how many jobs the queue had to forget.
        """
        if since_ms is None:
            return 0
        forgotten = 0
        for question in (changed_since, ended_since):
            ask = partial(question, namespace=self._store.namespace, since_ms=since_ms)
            after, more = None, True
            while more:
                page, after = await self._database.read(partial(ask, after=after))
                forgotten += await self._recheck_rows(page)
                more = after is not None
        return forgotten

    async def _recheck_rows(self, rows: list[Changed]) -> int:
        namespace = self._store.namespace
        jobs = await Views(self._store).get_many([row.key for row in rows])
        ended = [
            (row.key, row.revision)
            for row, job in zip(rows, jobs, strict=True)
            if row.ended and _difference(row, job) is Difference.finished
        ]
        forgotten = sum(await self._store.forget(ended))
        if open_ := [(row.key, row.revision) for row in rows if not row.ended]:
            await self._database.write(partial(relay_once_more, namespace=namespace, rows=open_))
        return forgotten


def _agreed(known: list[Approval], generation: Generation, server_id: str) -> bool:
    return all(each[:2] == (generation.record_id, server_id) for each in known)


def _difference(row: Changed, job: Job | None) -> Difference | None:
    promised = Promised(row.revision, row.ended, 0, b"")
    return judge(promised, None if job is None else Queued(job.revision, job.state, 0, b""))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
