"""
Claiming: as many jobs as there are free slots, and the wait for more.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from duly.store import PER_CALL

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from duly.handlers import Handler
    from duly.job import Lease
    from duly.services.outlook import Outlook
    from duly.services.running import Run, Running
    from duly.store import Claimed, Store, Want

CLAIMS_AHEAD = 8  #: batches in a row before other duties have their turn
OUTCOMES_PER_SLOT = 4  #: outcomes on their way, for each slot, before no more is claimed


class Claims:
    """
    The claims of one worker, one after the other.
    """

    def __init__(
        self,
        store: Store,
        running: Running,
        outlooks: list[Outlook],
        *,
        role: str,
        block_s: float | None,
        handlers: Callable[[], list[Handler[..., Any]]],
        begin: Callable[[Lease, float], Run | None],
        carry_out: Callable[[Run], Coroutine[Any, Any, None]],
    ) -> None:
        """
        Prepare: *begin* makes a run of a lease, or refuses it; *carry_out* is what its task does.

        *block_s* is how long to wait where there is nothing, None for not at all.
        """
        self.stopping = False
        self._store = store
        self._running = running
        self._outlooks = outlooks
        self._role = role
        self._handlers = handlers
        self._begin = begin
        self._carry_out = carry_out
        self._waiting = None if block_s is None else Waiting(store, running, block_s)
        self._number = 0
        self._asking: int | None = None  #: the shard of the claim under way
        self._passed_by = False  #: something is due where this round has been already

    async def run_once(self) -> int:
        """
        Claim what there is for free slots and start it; wait a little if there is nothing.
        """
        running, waiting = self._running, self._waiting
        self._passed_by = False
        handlers = self._handlers()
        wants = running.wants(handlers) if not self.stopping and not self._clogged() else []
        if not wants:
            if waiting is not None:
                await waiting.for_change()
            return 0
        limit = running.free
        started = 0
        for shard in self._shard_order():
            taken, unnamed = await self._claim(shard, wants, limit - started)
            started += taken
            if unnamed:
                # Due jobs of topics that others serve: put them within reach of those.
                await self._store.promote(shard, unnamed)
            wants = running.wants(handlers)
            if not wants or self.stopping:
                break
        if started < limit and not self.stopping and not self._passed_by and waiting is not None:
            await waiting.for_work(tuple(want.topic for want in running.wants(handlers)))
        return started

    async def _claim(self, shard: int, wants: list[Want], limit: int) -> tuple[int, tuple[str, ...]]:
        """
        Claim, and start what came.

        Where a full batch came, the next is asked for before this one starts:
        the server works on it while this process runs handlers.
        """
        loop = asyncio.get_running_loop()
        running = self._running
        started = 0
        self._asking = shard
        try:
            asked, sent_s = self._ask(shard, wants, limit)
            for more in range(CLAIMS_AHEAD, -1, -1):
                claimed = await asked
                self._outlooks[shard].note(claimed.look, sent_s)
                runs = [self._begin(lease, sent_s) for lease in claimed.leases]
                started += len(runs)
                wants = running.wants(self._handlers()) if len(runs) >= PER_CALL and more else []
                again = bool(wants) and not self.stopping and not self._clogged()
                if again:
                    asked, sent_s = self._ask(shard, wants, running.free)
                for run in runs:
                    if run is not None:
                        # Kept from being collected by the table of runs, which it leaves only at its end.
                        run.task = loop.create_task(self._carry_out(run))
                if not again:
                    break
        finally:
            self._asking = None
            running.tell()
        return started, claimed.look.unnamed

    def _ask(self, shard: int, wants: list[Want], limit: int) -> tuple[asyncio.Task[Claimed], float]:
        self._number += 1
        worker = self._running.worker
        claim = self._store.claim(
            shard,
            wants,
            worker=worker,
            number=self._number,
            limit=limit,
            suspects=self._running.suspects == 0,
            timer=worker,
            role=self._role,
        )
        return asyncio.get_running_loop().create_task(claim), time.monotonic()

    @property
    def under_way(self) -> bool:
        """
        Whether a claim was sent whose answer is not there yet.
        """
        return self._asking is not None

    def now(self, shard: int) -> bool:
        """
        Claim from *shard* without waiting to be woken, where there is room as soon as there is some; False if
        no more is taken.
        """
        if self.stopping:
            return False
        if self._running.free:
            # The answer of a claim under way there tells who asked, who may then ask again.
            self._passed_by = self._passed_by or self._asking != shard
            self._running.tell_all()
        return True

    def stop(self) -> None:
        """
        Take no more.  A claim that is under way may bring some still.
        """
        self.stopping = True
        if self._waiting is not None:
            self._waiting.hush()
        self._running.tell_all()

    def _clogged(self) -> bool:
        running = self._running
        if running.outcomes is not None and running.outcomes.full:
            return True
        return len(running.runs) >= OUTCOMES_PER_SLOT * running.concurrency + 100

    def _shard_order(self) -> list[int]:
        shards = list(range(self._store.shards))
        turn = self._number % len(shards)
        return shards[turn:] + shards[:turn]


class Waiting:
    """
    The wait for work, or for a slot to do it in.
    """

    def __init__(self, store: Store, running: Running, block_s: float) -> None:
        self._store = store
        self._running = running
        self._block_s = block_s
        self._bell: asyncio.Task[bool] | None = None
        self._topics: tuple[str, ...] = ()  #: that the bell rings for

    async def for_change(self) -> None:
        """
        Wait until a slot is freed or a run ends, or for a while.
        """
        change = self._running.changed()
        await asyncio.wait([change], timeout=self._block_s + 1)
        change.cancel()

    async def for_work(self, topics: tuple[str, ...]) -> None:
        """
        Wait until there may be work for *topics*, or a slot for others, or for a while.
        """
        if not topics:
            await self.for_change()
            return
        if self._bell is not None and self._topics != topics:
            # It may have taken a token already, so look once more before listening for these topics.
            self.hush()
            return
        room = self._running.room()
        if self._bell is None:
            self._bell = asyncio.get_running_loop().create_task(self._store.wait(topics, self._block_s))
            self._topics = topics
        bell = self._bell
        # A slot that is freed does not end the listening: it would cost a connection each time.
        either: tuple[asyncio.Future[Any], ...] = (bell, room)
        await asyncio.wait(either, timeout=self._block_s + 1, return_when=asyncio.FIRST_COMPLETED)
        if bell.done():
            self._bell = None
            if not bell.cancelled():
                bell.result()

    def hush(self) -> None:
        """
        Listen no more.
        """
        bell, self._bell = self._bell, None
        if bell is not None and not bell.cancel() and not bell.cancelled():
            bell.exception()  # asked for, so that nobody reports it as forgotten
