"""
The relay: brings committed rows to Redis, straight after the commit or by a regular look at what is due.

Any number of relays may run at once: Redis keeps the highest revision that it has seen, so that
to bring a row twice, or late, changes nothing.  No row is locked while Redis is asked.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from duly.documents import value_of
from duly.errors import DulyError, StoreUnavailable
from duly.job import JobState
from duly.pauses import Pauses
from duly.record.absence import StillAway
from duly.record.clock import Clock
from duly.record.crashpoints import crash_point
from duly.record.marks import Marks, mark
from duly.record.notices import Notices
from duly.record.rows import order_of
from duly.record.unbrought import to_bring
from duly.store import Promise, unsound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy import Connection

    from duly.events import Offset
    from duly.job import JobKey
    from duly.record.database import Database
    from duly.record.rows import JobRow
    from duly.store import Store

log = logging.getLogger("duly.relay")

SCAN_S = 1.0  #: how often a relay looks, whatever it was told
FEWEST, MOST = 20, 500  #: rows in one look
LOOK_BYTES = 4 * 1024 * 1024  #: what they may weigh together, as far as the last look tells


def promise_of(row: JobRow) -> Promise:
    """
    What Redis is told of a row that is open or cancelled.
    """
    cancelled = row.state == JobState.cancelled
    return Promise(order_of(row), row.revision, bytes(row.request), row.attempts, row.crashes, cancelled)


def _by_reason(rows: Sequence[JobRow]) -> dict[str, list[JobRow]]:
    """
    Those of *rows* that are cancelled, by the reason that they give.
    """
    found: dict[str, list[JobRow]] = {}
    for row in rows:
        if row.state == JobState.cancelled:
            told = value_of(bytes(row.outcome or b""))
            reason = str(told.get("type")) if isinstance(told, dict) else ""
            # Somebody may have written something else into the row.
            found.setdefault(reason if reason.isidentifier() else "cancelled", []).append(row)
    return found


class Brought(NamedTuple):
    """
    What Redis has been told, and how far the events of its shards were then.
    """

    given: list[tuple[JobKey, int]]
    offsets: dict[int, Offset]


class Relay:
    """
    Brings rows to Redis.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        *,
        horizon_ms: int,
        generation: Callable[[], int | None],
        clock: Clock | None = None,
        agree: Callable[[], Awaitable[None]] | None = None,
        scan_s: float = SCAN_S,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Prepare: *generation* tells which one Redis belongs to, or None while nobody has found it sound.

        *agree* has it compared again where it lost something, unless somebody else sees to that.
        *leads* says whether this one looks for rows by itself; others look where they know of a commit.

        Until then nothing is brought; what is due later than *horizon_ms* from now is not, either.
        """
        self.every_s = 0.0  #: it waits by itself
        self._database = database
        self._store = store
        self._horizon_ms = horizon_ms
        self._generation = generation
        self._clock = clock or Clock(store)
        self._agree = agree
        self._leads = leads
        # What comes within the horizon must be seen well before it is due.
        self._scan_s = min(scan_s, horizon_ms / 4000)
        self._limit = 100
        self._hinted = asyncio.Event()
        self._busy = False  #: there may be more than the last look brought
        self._marks = Marks(database, store.namespace)
        self._notices = Notices(database, store.namespace, self._hear) if database.listen_url else None

    # -- straight after a commit --------------------------------------------------------------------------

    async def push(self, rows: Sequence[JobRow]) -> bool:
        """
        Bring rows that were just committed; False if some of them are left to the next look.

        Never raises because Redis is away: what is committed is promised, and the relay follows up.
        """
        generation = self._generation()
        limit_ms = self._clock.now().floor_ms + self._horizon_ms
        near = [row for row in rows if row.relay_ms is not None and row.relay_ms < limit_ms]
        if not near:
            return True
        crash_point("push.committed")
        if generation is None:
            return False
        try:
            given, offsets = await self._clock.absence.ask(partial(self._push, near, generation))
        except StillAway:
            self.hint()
            return False
        except DulyError as error:
            log.warning("%d committed jobs are not in Redis yet: %s", len(near), error)
            self.hint()
            return False
        crash_point("push.hydrated")
        self._marks.add(given, generation, offsets)
        return len(given) == len(near)

    async def _push(self, rows: Sequence[JobRow], generation: int) -> Brought:
        return await self._bring_agreed(rows, generation)

    async def bring(
        self, rows: Sequence[JobRow], generation: int, *, read_ms: int | None = None
    ) -> dict[int, Offset]:
        """
        Tell Redis of rows that it should have already; how far the events of their shards are then.

        Raises:
            DulyError: Redis is away, or belongs to another generation.
        """
        return (await self._bring(rows, generation, read_ms)).offsets

    async def _bring_agreed(
        self, rows: Sequence[JobRow], generation: int, read_ms: int | None = None
    ) -> Brought:
        """
        Tell Redis of rows; one that refuses them is compared with the record first, or approved again.
        """
        try:
            return await self._bring(rows, generation, read_ms)
        except StoreUnavailable as error:
            if not unsound(error) or self._agree is None:
                raise
            await self._agree()
            if self._generation() != generation:
                # What these rows say may be over: they are to be read again.
                raise
        return await self._bring(rows, generation, read_ms)

    async def _bring(self, rows: Sequence[JobRow], generation: int, read_ms: int | None = None) -> Brought:
        """
        Tell Redis of rows; the answer is what it has taken, or has at a higher revision.
        """
        # Before anything else, and whatever Redis has lost: nobody may begin what is cancelled.
        brought = Brought([], {})
        for reason, cancelled in _by_reason(rows).items():
            await self._tell(brought, cancelled, None, read_ms, reason)
        await self._tell(brought, [row for row in rows if not row.ended], generation, read_ms)
        past = [(row.key, row.revision) for row in rows if row.ended and row.state != JobState.cancelled]
        if past:
            await self._store.forget(past)
            brought.given.extend(past)
        self._clock.absence.heard()
        return brought

    async def _tell(
        self,
        brought: Brought,
        rows: Sequence[JobRow],
        generation: int | None,
        read_ms: int | None,
        reason: str = "cancelled",
    ) -> None:
        if not rows:
            return
        answers = await self._store.hydrate(
            map(promise_of, rows), generation=generation, read_ms=read_ms, reason=reason
        )
        for row, answer in zip(rows, answers, strict=True):
            if not isinstance(answer, DulyError):
                brought.given.append((row.key, row.revision))
                if answer.upto is not None:
                    brought.offsets[answer.upto.shard] = answer.upto.offset

    # -- by regular look ----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """
        Wait until what was pushed is marked, or cannot be.
        """
        await self._marks.settle()

    def hint(self) -> None:
        """
        Say that rows were committed: the relay looks at once.
        """
        self._hinted.set()

    def _hear(self) -> None:
        # All processes are told, and one is enough.
        if self._leads():
            self.hint()

    async def run(self, stop: asyncio.Event) -> None:
        """
        Look for rows until *stop* is set, however long Redis or the database is away.
        """
        stopped = asyncio.get_running_loop().create_task(stop.wait())
        stopped.add_done_callback(lambda _: self.hint())
        listening = asyncio.get_running_loop().create_task(self.listen())
        pauses = Pauses()
        try:
            while not stop.is_set():
                try:
                    await self.run_once()
                except DulyError as error:
                    log.warning("relay: %s; trying again in %.1f s", error, pauses.next_s)
                    await pauses.wait(stop)
                else:
                    pauses.reset()
            await self._marks.settle()
        finally:
            stopped.cancel()
            listening.cancel()
            await asyncio.gather(stopped, listening, return_exceptions=True)

    async def listen(self) -> None:
        """
        Be told by the database of what other processes commit, where it can; for ever.
        """
        if self._notices is not None:
            await self._notices.listen()

    async def run_once(self) -> int:
        """
        Bring one look's worth of rows, as the leader or after a hint; where there were none, wait for either.

        Raises:
            DulyError: Redis or the database is away.
        """
        looks = self._leads() or self._hinted.is_set() or self._busy
        brought = await self.look() if looks else 0
        self._busy = brought > 0
        if not brought:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._scan_s):
                    await self._hinted.wait()
        return brought

    async def look(self) -> int:
        """
        Bring rows whose time is near, soonest first, at most one look's worth; how many that were.

        Raises:
            DulyError: Redis or the database is away.
        """
        generation = self._generation()
        # What is committed from here on hints anew.
        self._hinted.clear()
        if generation is None:
            return 0
        with suppress(DulyError):
            await self._clock.look()
        read_ms = self._clock.now().floor_ms
        rows = await self._database.read(self._select)
        crash_point("relay.selected")
        if not rows:
            return 0
        given, offsets = await self._bring_agreed(rows, generation, read_ms)
        crash_point("relay.hydrated")

        def work(connection: Connection) -> None:
            mark(connection, self._store.namespace, given, generation, offsets)
            crash_point("relay.marked")

        await self._database.write(work)
        crash_point("relay.committed")
        return len(given)

    def _select(self, connection: Connection) -> list[JobRow]:
        limit_ms = self._clock.now().floor_ms + self._horizon_ms
        rows = to_bring(connection, self._store.namespace, limit_ms, self._limit)
        if rows:
            each = sum(len(row.payload) + len(row.envelope) for row in rows) / len(rows)
            self._limit = max(FEWEST, min(MOST, int(LOOK_BYTES / (each + 1))))
        return rows
