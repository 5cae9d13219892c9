"""
Claiming: as many jobs as there are free slots, and the wait for more.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from duly.services.backlog import CHOSEN, Backlog
from duly.store import PER_CALL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from duly.handlers import Handler
    from duly.job import Lease
    from duly.services.outlook import Outlook
    from duly.services.running import Run, Running
    from duly.store import Claimed, Store, Want

CLAIMS_AHEAD = 8  #: batches in a row before other duties have their turn
OUTCOMES_PER_SLOT = 4  #: outcomes on their way, for each slot, before no more is claimed
WAITS_LONGER = (
    4.0  #: how much longer a worker counts as waiting than it blocks: so it need not say so each time
)


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
        topics: Callable[[], Collection[str]],
        handler: Callable[[str], Handler[..., Any] | None],
        begin: Callable[[Lease, float], Run | None],
        carry_out: Callable[[Run], Coroutine[Any, Any, None]],
        looks: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Prepare: *begin* makes a run of a lease, or refuses it; *carry_out* is what its task does.

        *looks* says whether the worker looks by itself when a job falls due: not if others should have it.
        *topics* are those of the worker, *handler* finds theirs.
        *block_s* is how long to wait where there is nothing, None for not at all.
        """
        self.stopping = False
        self._store = store
        self._running = running
        self._outlooks = outlooks
        self._role = role
        self._topics = topics
        self._handler = handler
        self._begin = begin
        self._carry_out = carry_out
        self._looks = looks
        self._backlog = Backlog(store, topics)
        self._waiting = None if block_s is None else Waiting(store, running, self._backlog, block_s)
        self._wait_s = 0.0 if block_s is None else WAITS_LONGER * block_s
        self._turns: list[int] = []  #: shards that have yet to begin a round
        self._asking: int | None = None  #: the shard of the claim under way
        self._passed_by = False  #: something is due where this round has been already
        self._making_room = False  #: for a job that has to run isolated
        self._open_s: float | None = None  #: when what was left to others is open to everybody

    async def run_once(self) -> int:
        """
        Claim what there is for free slots and start it; wait a little if there is nothing.
        """
        running, waiting = self._running, self._waiting
        if self.unanswered:
            await self._store.give_back_unanswered(running.worker)
            running.tell()
        self._passed_by = False
        self._open_s = None
        self._making_room = self._making_room and bool(running.runs)
        if self.stopping or self._clogged() or self._making_room or not running.free:
            return await self._wait_for_change()
        broad = self._backlog.is_broad
        if broad:
            await self._backlog.refresh()
        limit = running.free
        started = 0
        for shard in self._shard_order(broad=broad):
            wants = self._wants(shard, broad=broad)
            if not wants:
                if not broad:
                    break
                continue
            started += await self._claim(shard, wants, running.free, broad=broad)
            if self.stopping or not running.free or self._making_room:
                break
        if started and broad and self._backlog.shards():
            # Other topics have something as well: only a few of them are named in a claim.
            return started
        if started < limit and not self.stopping and not self._passed_by and waiting is not None:
            topics = () if broad else tuple(want.topic for want in self._wants(0, broad=False))
            if not topics and not broad:
                return started + await self._wait_for_change()
            left_s = None if self._open_s is None else self._open_s - time.monotonic()
            await waiting.for_work(topics, left_s)
        return started

    async def _wait_for_change(self) -> int:
        if self._waiting is not None:
            await self._waiting.for_change()
        return 0

    def _wants(self, shard: int, *, broad: bool) -> list[Want]:
        """
        What can be taken now, of all topics or of those that have something.
        """
        if not broad:
            return self._wants_of(self._topics())
        # Those that were chosen may have no free slot of their own.
        return (
            self._wants_of(self._backlog.choose(shard)) or self._wants_of(self._backlog.known(shard))[:CHOSEN]
        )

    def _wants_of(self, topics: Iterable[str]) -> list[Want]:
        handlers = (self._handler(topic) for topic in topics)
        return self._running.wants(handler for handler in handlers if handler is not None)

    async def _claim(self, shard: int, wants: list[Want], limit: int, *, broad: bool) -> int:
        """
        Claim, and start what came; how many.

        Where there is more, the next batch is asked for before this one starts: the server works on it while
        this process runs handlers.
        """
        loop = asyncio.get_running_loop()
        running = self._running
        started = 0
        self._asking = shard
        try:
            asked, sent_s = self._ask(shard, wants, limit, broad=broad)
            for more in range(CLAIMS_AHEAD, -1, -1):
                claimed = await asked
                self._note(shard, wants, limit, claimed, sent_s)
                runs = [self._begin(lease, sent_s) for lease in claimed.leases]
                started += len(runs)
                goes_on = len(runs) >= PER_CALL or (broad and runs and self._backlog.known(shard))
                wants = self._wants(shard, broad=broad) if goes_on and more else []
                again = bool(wants) and not self.stopping and not self._clogged()
                if again:
                    limit = running.free
                    asked, sent_s = self._ask(shard, wants, limit, broad=broad)
                for run in runs:
                    if run is not None:
                        # Kept from being collected by the table of runs, which it leaves only at its end.
                        run.task = loop.create_task(self._carry_out(run), context=run.context)
                if not again:
                    break
        finally:
            self._asking = None
            running.tell()
        return started

    def _note(self, shard: int, wants: list[Want], limit: int, claimed: Claimed, sent_s: float) -> None:
        self._outlooks[shard].note(claimed.look, sent_s)
        full = len(claimed.leases) >= min(limit, PER_CALL)
        self._backlog.note(shard, (want.topic for want in wants), claimed.rest, full=full)
        self._making_room = self._making_room or claimed.room
        if claimed.open_s is not None:
            open_s = time.monotonic() + claimed.open_s
            self._open_s = open_s if self._open_s is None else min(self._open_s, open_s)

    def _ask(
        self, shard: int, wants: list[Want], limit: int, *, broad: bool
    ) -> tuple[asyncio.Task[Claimed], float]:
        running = self._running
        claim = self._store.claim(
            shard,
            wants,
            worker=running.worker,
            limit=limit,
            half=running.half,
            alone=not running.runs,
            wait_s=self._wait_s,
            looks=not broad and self._looks(),
            broad=broad,
            timer=running.worker,
            role=self._role,
        )
        return asyncio.get_running_loop().create_task(claim), time.monotonic()

    @property
    def under_way(self) -> bool:
        """
        Whether a claim was sent whose answer is not there yet.
        """
        return self._asking is not None

    @property
    def unanswered(self) -> bool:
        """
        Whether a claim may hold jobs that nobody knows of: the next `run_once` gives them back.
        """
        return self._store.has_unanswered(self._running.worker)

    def now(self, shard: int) -> bool:
        """
        Claim from *shard* without waiting to be woken, where there is room as soon as there is some; False if
        no more is taken.
        """
        if self.stopping or self._backlog.is_broad:
            # With many topics it is told which ones have work once that is promoted.
            return False
        if self._running.free:
            # The answer of a claim under way there tells who asked, who may then ask again.
            self._passed_by = self._passed_by or self._asking != shard
            self._running.tell_all()
        return True

    def topics_with_room(self) -> list[str] | None:
        """
        The topics of which a job could start now, None for more than one call may name.
        """
        if self.stopping or not self._running.free or self._making_room or self._clogged():
            return []
        if self._backlog.is_broad:
            return None
        return [want.topic for want in self._wants(0, broad=False)]

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

    def _shard_order(self, *, broad: bool) -> list[int]:
        if broad:
            shards = self._backlog.shards()
            random.shuffle(shards)
            return shards
        # Each begins a round once, in an order that chance has made: turns that are only counted stay in step
        # with those of others, and somebody starves.
        if not self._turns:
            self._turns = random.sample(range(self._store.shards), self._store.shards)
        first = self._turns.pop()
        shards = list(range(self._store.shards))
        return shards[first:] + shards[:first]


class Waiting:
    """
    The wait for work, or for a slot to do it in.
    """

    def __init__(self, store: Store, running: Running, backlog: Backlog, block_s: float) -> None:
        self._store = store
        self._running = running
        self._backlog = backlog
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

    async def for_work(self, topics: tuple[str, ...], at_most_s: float | None = None) -> None:
        """
        Wait until there may be work for *topics*, or a slot for others, or for a while.

        No topics means all, of a worker that has too many to listen to each.
        """
        if self._bell is not None and self._topics != topics:
            # It may have taken a token already, so look once more before listening for these topics.
            self.hush()
            return
        room = self._running.room()
        if self._bell is None:
            listen = self._store.wait(topics, self._block_s) if topics else self._backlog.wait(self._block_s)
            self._bell = asyncio.get_running_loop().create_task(listen)
            self._topics = topics
        bell = self._bell
        # A slot that is freed does not end the listening: it would cost a connection each time.
        either: tuple[asyncio.Future[Any], ...] = (bell, room)
        wait_s = self._block_s + 1 if at_most_s is None else max(0.0, at_most_s)
        await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
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
