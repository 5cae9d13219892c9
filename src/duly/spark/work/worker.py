"""
The worker of batch handlers: the place of `duly.services.worker.Worker` in a crew, with batches for runs.

A driver loop and no streaming source: after a failure Spark would plan a batch again, with claims whose
leases are long gone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from duly.services.threads import Threads
from duly.services.worker import WornOut, worker_name
from duly.spark.work.batch import Batch, Held
from duly.spark.work.claiming import WAITING, Claims
from duly.spark.work.outcomes import released
from duly.spark.work.saving import Saver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from duly.batchhandler import BatchHandler
    from duly.handlers import Handlers
    from duly.job import Lease
    from duly.services.outlook import Outlook
    from duly.spark.work.claiming import Gathered
    from duly.spark.work.outcomes import Endings
    from duly.store import Store

log = logging.getLogger("duly.batches")

SWEEP_S = 0.2
SETTLE_S = 5.0  #: how long what was given up may take to come back


class BatchWorker:
    """
    Runs jobs of an app's batch handlers, one batch after the other.
    """

    every_s = 0.0

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        outlooks: list[Outlook],
        *,
        spark: SparkSession,
        topics: list[str] | None = None,
        block_s: float = 1.0,
        grace_s: float = 25.0,
        role: str = "auto",
        **_others: Any,
    ) -> None:
        self.name = worker_name()
        self.running = Held(store.lease_ms)
        self.batches = 0
        self.finished = 0
        self.fenced = 0
        self.wrong: str | None = None  #: with the last batch that was not as it should be
        self._spark = spark
        self._store = store
        self._handlers = [each for each in handlers.batches() if topics is None or each.topic in topics]
        self._block_s = block_s
        self._grace_s = grace_s
        self._turn = 0
        self._next_s: dict[str, float] = {}  #: when a batch of the topic may begin
        self._took_s: dict[str, float] = {}  #: how long the last batch of a topic ran
        self._ahead: Gathered | None = None  #: claimed, and waits for the batch that runs
        self._claims = Claims(store, outlooks, self.running, worker=self.name, role=role)
        self._saver = Saver(store)
        self._threads = Threads()
        self._batch: Batch | None = None
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._stopping = False

    # -- claiming -----------------------------------------------------------------------------------------

    async def run_once(self) -> int:
        """
        Begin a batch, or claim the next one while it runs, or wait for either or for work; never for long.

        Raises:
            WornOut: A function that was given up does not come back.
        """
        await self._store.give_back_unanswered(self.name)
        if self._task is not None:
            return await self._meanwhile(self._task)
        if self._stopping:
            await asyncio.sleep(self._block_s)
            return 0
        gathered, self._ahead = self._ahead, None
        if gathered is None:
            gathered = await self._gather()
        elif not gathered.is_full:
            await self._claims.fill(gathered)
        if gathered is not None:
            self._begin(gathered)
            return len(gathered.leases)
        if self._claims.makes_room and self._saving is not None and not self._saving.done():
            await asyncio.wait([self._saving])
        elif (wait_s := self._early_s()) < self._block_s:
            await asyncio.sleep(wait_s)
        else:
            await self._store.wait([handler.topic for handler in self._handlers], self._block_s)
        return 0

    async def _meanwhile(self, task: asyncio.Task[None]) -> int:
        """
        Claim the next batch while one runs, if there is a backlog and it will not have to wait for long.
        """
        claimed = 0
        if self._ahead is None and self._may_claim_ahead() and (gathered := await self._gather()):
            self._ahead = gathered
            claimed = len(gathered.leases)
        await asyncio.wait([task], timeout=self._block_s)
        if task.done():
            self._task = None
            task.result()
        elif (ahead := self._ahead) and time.monotonic() > ahead.begun_s + ahead.patience_s:
            # This one takes longer than the last: others may be free to run them.
            self._ahead = None
            if self._batch is not None:
                self._took_s[self._batch.handler.topic] = math.inf
            await self._give_back(list(ahead.leases.values()))
        return claimed

    def _may_claim_ahead(self) -> bool:
        batch = self._batch
        if batch is None or self._stopping or len(batch.leases) < batch.handler.max_rows:
            # A trickle waits, and becomes one batch instead of two.
            return False
        return self._took_s.get(batch.handler.topic, 0.0) < WAITING * batch.ttr_ms / 1000

    async def _gather(self) -> Gathered | None:
        """
        Claim jobs of the first topic, in turn, that may have a batch now and has jobs.
        """
        now_s = time.monotonic()
        free = [each for each in self._in_turn() if self._next_s.get(each.topic, 0.0) <= now_s]
        for handler in await self._claims.worth_asking(free):
            gathered = await self._claims.gather(handler)
            if gathered.leases:
                return gathered
        return None

    def _early_s(self) -> float:
        """
        How long it is until a topic may have its next batch.
        """
        now_s = time.monotonic()
        early = [next_s - now_s for next_s in self._next_s.values() if next_s > now_s]
        return min([self._block_s, *early])

    def _in_turn(self) -> list[BatchHandler]:
        self._turn += 1
        turn = self._turn % max(len(self._handlers), 1)
        return self._handlers[turn:] + self._handlers[:turn]

    def _begin(self, gathered: Gathered) -> None:
        handler, leases = gathered.handler, list(gathered.leases.values())
        if len(leases) < handler.max_rows:
            # A backlog does not wait; a trickle is given time to become a batch.
            self._next_s[handler.topic] = gathered.begun_s + handler.every_s
        self._batch = Batch(self._spark, handler, leases, gathered.begun_s)
        self._task = asyncio.get_running_loop().create_task(self._run(self._batch))

    def claim_now(self, shard: int) -> bool:
        """
        Claims are not hurried: batches come when the one before has ended.
        """
        del shard
        return False

    def topics_with_room(self) -> None:
        """
        Unknown: a batch takes what there is.
        """
        return

    # -- running ------------------------------------------------------------------------------------------

    async def _run(self, batch: Batch) -> None:
        """
        Run a batch, and begin to store its outcomes once those of the batch before it are stored.
        """
        begun_s = time.monotonic()
        endings = await batch.run(self._threads)
        self._took_s[batch.handler.topic] = time.monotonic() - begun_s
        self._batch = None
        if self._saving is not None:
            await self._saving
        # The next batch is claimed and begins while these are stored.
        self._saving = asyncio.get_running_loop().create_task(self._save(batch, endings))

    async def _save(self, batch: Batch, endings: Endings) -> None:
        stored, lost = await self._saver.save(endings.by_verb)
        self.running.drop(batch.leases)
        self.batches += 1
        self.finished += stored
        self.wrong = batch.wrong or (endings.wrong[0] if endings.wrong else None) or self.wrong
        self.fenced += len(lost)
        batch.tell(endings, lost)

    def stop_run(self, member: str, token: int) -> None:
        """
        Do nothing: the outcome of a job that was cancelled or replaced will not count, its row does no harm.
        """

    async def sweep(self) -> None:
        """
        Give up batches that are over their time to run, for ever.

        Raises:
            WornOut: A function does not stop although it was given up.
        """
        while True:
            await asyncio.sleep(SWEEP_S)
            batch = self._batch
            if batch is None or not batch.is_over(time.monotonic()):
                continue
            batch.give_up(self._threads, "timeout")
            if not await batch.comes_back(SETTLE_S):
                raise WornOut(
                    f"the batch handler of {batch.handler.topic} does not stop although its time to run of "
                    f"{batch.ttr_ms / 1000:g} s is over: the process should be started anew"
                )

    # -- stopping -----------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """
        Stop claiming, let the batch finish within the grace, and give it back if it does not.
        """
        self._stopping = self._claims.stopping = True
        if (ahead := self._ahead) is not None:
            self._ahead = None
            await self._give_back(list(ahead.leases.values()))
        deadline_s = time.monotonic() + self._grace_s
        while self._busy() and time.monotonic() < deadline_s:
            await self._settle(deadline_s - time.monotonic())
        await self.give_back_all()

    async def give_back_all(self) -> None:
        """
        Give back what still runs, uncounted, and see that all else is stored.
        """
        self._stopping = self._claims.stopping = True
        if self._batch is not None:
            self._batch.give_up(self._threads, "drain")
        deadline_s = time.monotonic() + SETTLE_S
        while self._busy() and time.monotonic() < deadline_s:
            await self._settle(deadline_s - time.monotonic())
        if self._store.has_unanswered(self.name):
            log.warning("a claim had no answer until the end; what it took is left to its lease")
        if left := self.running.all():
            # Claimed, and not begun.
            await self._give_back(left)

    async def _give_back(self, leases: list[Lease]) -> None:
        await self._saver.save(released(leases).by_verb)
        self.running.drop(leases)

    def _busy(self) -> bool:
        tasks = (self._task, self._saving)
        if self._claims.under_way or self._store.has_unanswered(self.name):
            return True
        return any(task is not None and not task.done() for task in tasks)

    async def _settle(self, within_s: float) -> None:
        tasks = [task for task in (self._task, self._saving) if task is not None and not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=max(within_s, 0), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(0.01)

    def counts(self) -> dict[str, int]:
        """
        What it did since its start.
        """
        return {"batches": self.batches, "jobs": self.finished, "lost": self.fenced}

    def about(self) -> bytes:
        """
        What the worker says of itself.
        """
        return msgspec.json.encode(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "topics": [handler.topic for handler in self._handlers],
                "concurrency": max((handler.max_rows for handler in self._handlers), default=0),
                "running": len(self.running),
                "claimed": self._claims.total,
                "finished": self.finished,
                "fenced": self.fenced,
            }
        )
