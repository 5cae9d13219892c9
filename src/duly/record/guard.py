"""
The guard: lets a queue hand out jobs only while its record says that this server, in this life, counts.

An approval lasts two seconds and is renewed by a process that has just asked the database.  It is void once
the server was restarted, promoted or rolled back: then it is compared before anything is handed out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from duly.errors import RecordUnavailable, ServerUnsuitable, StoreUnavailable
from duly.feed import EventsLost, Feed
from duly.loops import start_beside
from duly.record.crashpoints import crash_point
from duly.record.generations import first_generation, has_rows, last_generations, next_generation, renew
from duly.record.keys import KeptKeys
from duly.record.watermarks import heard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duly.record.database import Database
    from duly.record.generations import Generation
    from duly.store import Life, Store

log = logging.getLogger("duly.record")

#: In this time workers that lived through a loss of the queue write down what they had finished.
SETTLE_S = 1.0
APPROVED_MS = 2_000  #: how long an approval lasts: so long a server that was replaced may go on
RENEWED_MS = 1_200  #: it is renewed when less than this is left of it
EVERY_S = 0.4
ASKED_FOR_S = 0.5  #: how long a silent database is waited for
#: A server that was replaced counts again, once it was compared, if no other was approved for so long.
SILENT_S = 5.0


class Guard:
    """
    Answers for the queue: that what it hands out has not ended.
    """

    every_s = EVERY_S

    def __init__(
        self,
        database: Database,
        store: Store,
        *,
        hint: Callable[[], None],
        settle_s: float = SETTLE_S,
        works_alone: bool = True,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Prepare: *hint* is called when the queue was found to agree.

        *works_alone*: while the database is away, a server that counted when it was last asked goes on.
        *leads* says whether this process renews approvals, for all others.
        """
        self._current: Generation | None = None
        self._database = database
        self._store = store
        self._hint = hint
        self._settle_s = settle_s
        self._works_alone = works_alone
        self._leads = leads
        self._keys = KeptKeys(database, store.namespace)
        self._one_at_a_time = asyncio.Lock()
        self._alone = False
        self._asked: asyncio.Task[list[Generation]] | None = None
        self._seen = (0, 0)  #: how often the newest generation was renewed
        self._seen_s = 0.0  #: when that was something else for the last time

    @property
    def current(self) -> Generation | None:
        """
        The generation in which the queue was last found to agree; None before.
        """
        return self._current

    @property
    def generation(self) -> int:
        """
        Its number; 0 before.
        """
        return self._current.number if self._current else 0

    def known(self) -> int | None:
        """
        Its number; None before.
        """
        return self.generation or None

    async def run_once(self) -> int:
        """
        Renew the approval before it ends, if this process leads; others ask when a claim is refused.

        Raises:
            DulyError: As `agree`.
        """
        if self._leads():
            lives = await self._store.lives()
            if not self._holds(lives) or any(_left_ms(life) < RENEWED_MS for life in lives):
                await self.agree()
        return 0

    async def agree(self) -> None:
        """
        Let the queue be used if its servers count; where they are new to the record, compare the two first.

        Raises:
            ServerUnsuitable: The queue belongs to another record.
            StoreUnavailable, RecordUnavailable: One of them is away, or the server was replaced by another:
                nothing is handed out meanwhile.
        """
        async with self._one_at_a_time:
            before = self._current
            while True:
                lives = await self._store.lives()
                generation = await self._counting(lives)
                if generation is None:
                    continue
                crash_point("guard.compared")
                if await self._store.approve(
                    generation.record_id, generation.number, lives, for_ms=APPROVED_MS
                ):
                    break
                log.warning("another server answers than the one that was compared: comparing again")
            crash_point("guard.approved")
            self._current = generation
        if before is None or before.number != generation.number:
            self._hint()

    async def aclose(self) -> None:
        """
        Wait no longer for what the database was asked.
        """
        if self._asked is not None and self._asked.get_loop() is asyncio.get_running_loop():
            self._asked.cancel()
            await asyncio.wait({self._asked})

    def _holds(self, lives: Sequence[Life]) -> bool:
        """
        Return whether the servers are those that were approved last, here or by another process.
        """
        return self._current is not None and _are_of(lives, self._current)

    async def _counting(self, lives: Sequence[Life]) -> Generation | None:
        """
        The generation that these servers belong to, once they were compared; None to look again.
        """
        try:
            found = await self._ask()
        except RecordUnavailable:
            if not (self._works_alone and self._holds(lives)):
                raise
            if not self._alone:
                self._alone = True
                log.warning("the record is away: the queue goes on with the server that counted last")
            return self._current
        self._alone = False
        if not found:
            return await self._first(lives)
        newest = found[0]
        self._check_record(newest, lives)
        if _are_of(lives, newest):
            going_on = partial(renew, namespace=self._store.namespace, number=newest.number)
            return newest if await self._database.write(going_on) else None
        if _were_replaced([life.name for life in lives], found) and self._is_alive(newest):
            raise StoreUnavailable(
                f"the server at {self._store.link.place} was replaced by another one, which goes on with "
                f"namespace {self._store.namespace!r}: it hands out nothing any more; connect to that one"
            )
        return await self._compare(newest, lives)

    def _is_alive(self, newest: Generation) -> bool:
        """
        Return whether the servers of a generation were approved lately, by whatever process.
        """
        seen = (newest.number, newest.renewed)
        if seen != self._seen:
            self._seen, self._seen_s = seen, time.monotonic()
        return time.monotonic() - self._seen_s < SILENT_S

    async def _ask(self) -> list[Generation]:
        """
        Ask for the last generations; a process that has asked before does not wait for a silent database.

        Raises:
            RecordUnavailable: It cannot be reached, or has not answered yet.
        """
        read = partial(last_generations, namespace=self._store.namespace)
        if self._current is None or not self._works_alone:
            return await self._database.read(read)
        while True:
            is_new = self._asked is None or self._asked.done()
            if self._asked is None or is_new:
                self._asked = start_beside(self._database.read(read))
            asked = self._asked
            await asyncio.wait({asked}, timeout=ASKED_FOR_S)
            if not asked.done():
                raise RecordUnavailable(f"the record has not answered for {ASKED_FOR_S} s")
            if is_new:
                return asked.result()
            # An answer from before this call: another server may count since.
            _ = asked.cancelled() or asked.exception()

    def _check_record(self, newest: Generation, lives: Sequence[Life]) -> None:
        if any(life.record_id not in ("", newest.record_id) for life in lives):
            raise ServerUnsuitable(
                f"namespace {self._store.namespace!r} at {self._store.link.place} belongs to another "
                "record than the one in the settings: check record, or choose another namespace"
            )

    async def _first(self, lives: Sequence[Life]) -> Generation | None:
        if any(life.record_id for life in lives):
            raise ServerUnsuitable(
                f"namespace {self._store.namespace!r} at {self._store.link.place} belongs to another "
                "record than the one in the settings: check record, or choose another namespace"
            )
        begin = partial(
            first_generation,
            namespace=self._store.namespace,
            lives=[life.name for life in lives],
            now_ms=max(life.now_ms for life in lives),
        )
        await self._keys.adopt(self._store)
        return await self._database.write(begin)

    async def _compare(self, newest: Generation, lives: Sequence[Life]) -> Generation | None:
        """
        Find out what the queue has lost, and begin a generation; None if anything changed meanwhile.
        """
        promised = await self._database.read(partial(has_rows, namespace=self._store.namespace))
        if promised:
            await asyncio.sleep(self._settle_s)
            again = await self._store.lives()
            [then] = await self._database.read(
                partial(last_generations, namespace=self._store.namespace, limit=1)
            )
            moved = [each.name for each in again] != [each.name for each in lives]
            if moved or then.number != newest.number or _are_of(again, newest):
                return None
        lost = await self._lost(lives) if promised else {}
        for shard, reason in lost.items():
            log.critical(
                "the queue is behind its record on shard %d: %s; bringing back what is open", shard, reason
            )
        made = await self._database.write(
            partial(
                next_generation,
                namespace=self._store.namespace,
                was=newest,
                lives=[life.name for life in lives],
                now_ms=max(life.now_ms for life in lives),
                lost=lost,
            )
        )
        crash_point("guard.raised")
        if made is not None:
            await self._keys.restore(self._store)
        return made

    async def _lost(self, lives: Sequence[Life]) -> dict[int, str]:
        """
        The shards that have lost a part of what the rows have heard of, and what shows it.
        """
        lost = {
            shard: "it does not know of its record any more"
            for shard, life in enumerate(lives)
            if not life.record_id
        }
        feed = Feed(self._store)
        for shard, offset in await self._database.read(partial(heard_of, namespace=self._store.namespace)):
            try:
                await feed.packed(shard, offset, 1)
            except EventsLost as error:
                # What was trimmed was there, and more came after it.
                if error.first is None:
                    lost.setdefault(shard, str(error))
        return lost


def _were_replaced(names: Sequence[str], found: Sequence[Generation]) -> bool:
    """
    Return whether one of the servers counted once, in this life, and another one has counted since.
    """
    newest, *earlier = found
    if len(newest.lives) != len(names):
        return False
    return any(
        name != newest.lives[shard] and any(name in each.lives[shard : shard + 1] for each in earlier)
        for shard, name in enumerate(names)
    )


def _are_of(lives: Sequence[Life], generation: Generation) -> bool:
    """
    Return whether servers, each in this life, were approved in a generation.
    """
    names = tuple(life.name for life in lives)
    return names == generation.lives and all(
        life.until_ms is not None and life.generation == generation.number for life in lives
    )


def _left_ms(life: Life) -> int:
    return 0 if life.until_ms is None else life.until_ms - life.server_ms
