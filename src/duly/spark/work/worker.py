"""
The worker of batch handlers: the place of `duly.services.worker.Worker` in a crew, with batches for runs.

A driver loop and no streaming source: after a failure Spark would plan a batch again, with claims whose
leases are long gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from duly.errors import DulyError
from duly.services.threads import Threads
from duly.services.worker import WornOut, worker_name
from duly.spark.work.batch import Batch, Held
from duly.spark.work.outcomes import released
from duly.spark.work.saving import Saver
from duly.store import Want

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from duly.batchhandler import BatchHandler
    from duly.handlers import Handlers
    from duly.job import Lease
    from duly.services.outlook import Outlook
    from duly.spark.work.outcomes import Endings
    from duly.store import Store

log = logging.getLogger("duly.batches")

SWEEP_S = 0.2
SETTLE_S = 5.0  #: how long what was given up may take to come back
#: Jobs that are run together with one that has a crash behind it: if it crashes the driver again, so many
#: share its fate, and each of those is then run alone.  The thousands of a killed driver come back soon.
SUSPECTS = 100


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
        self.running = Held()
        self.claimed = 0
        self.finished = 0
        self.fenced = 0
        self._spark = spark
        self._store = store
        self._outlooks = outlooks
        self._handlers = [each for each in handlers.batches() if topics is None or each.topic in topics]
        self._block_s = block_s
        self._grace_s = grace_s
        self._role = role
        self._number = 0
        self._turn = 0
        self._next_s: dict[str, float] = {}  #: when a batch of the topic may begin
        self._saver = Saver(store)
        self._threads = Threads()
        self._batch: Batch | None = None
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._stopping = False
        self._claiming = False

    # -- claiming -----------------------------------------------------------------------------------------

    async def run_once(self) -> int:
        """
        Begin a batch, or wait for the one that runs, or for work; never for long.

        Raises:
            WornOut: A function that was given up does not come back.
        """
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._block_s)
            if self._task.done():
                task, self._task = self._task, None
                task.result()
            return 0
        if self._stopping:
            await asyncio.sleep(self._block_s)
            return 0
        wait_s = self._block_s
        for handler in self._in_turn():
            if (early_s := self._next_s.get(handler.topic, 0.0) - time.monotonic()) > 0:
                wait_s = min(wait_s, early_s)
                continue
            begun_s = time.monotonic()
            if leases := await self._gather(handler):
                if len(leases) < handler.max_rows:
                    # A backlog does not wait; a trickle is given time to become a batch.
                    self._next_s[handler.topic] = begun_s + handler.every_s
                self._batch = Batch(self._spark, handler, leases, begun_s)
                self._task = asyncio.get_running_loop().create_task(self._run(self._batch))
                return len(leases)
        if wait_s < self._block_s:
            await asyncio.sleep(wait_s)
        else:
            await self._store.wait([handler.topic for handler in self._handlers], self._block_s)
        return 0

    def _in_turn(self) -> list[BatchHandler]:
        self._turn += 1
        turn = self._turn % max(len(self._handlers), 1)
        return self._handlers[turn:] + self._handlers[:turn]

    async def _gather(self, handler: BatchHandler) -> list[Lease]:
        """
        Claim a batch: as much as there is, up to the handler's limit; little if there are suspects in it.
        """
        leases: dict[str, Lease] = {}
        self._claiming = True
        try:
            for shard in self._shard_order():
                while len(leases) < handler.max_rows and not self._stopping:
                    room = handler.max_rows - len(leases)
                    fresh = await self._claim(shard, handler, room, first=not leases)
                    leases.update((lease.key.id, lease) for lease in fresh)
                    self.running.hold(fresh)
                    if not fresh or any(lease.crashes for lease in fresh):
                        break
                if any(lease.crashes for lease in leases.values()):
                    break
        except DulyError as error:
            if not leases:
                raise
            log.warning("claimed only a part of a batch of %s: %s", handler.topic, error)
        finally:
            self._claiming = False
        self.claimed += len(leases)
        return list(leases.values())

    def _shard_order(self) -> list[int]:
        # Each batch begins with another one, so that the suspects of none starve.
        shards = list(range(self._store.shards))
        turn = self._turn % len(shards)
        return shards[turn:] + shards[:turn]

    async def _claim(self, shard: int, handler: BatchHandler, free: int, *, first: bool) -> Sequence[Lease]:
        self._number += 1
        sent_s = time.monotonic()
        claimed = await self._store.claim(
            shard,
            [Want(handler.topic, free, handler.ttr_ms)],
            worker=self.name,
            number=self._number,
            limit=min(free, SUSPECTS) if first else free,
            suspects=SUSPECTS if first else 0,
            timer=self.name,
            role=self._role,
        )
        self._outlooks[shard].note(claimed.look, sent_s)
        if claimed.look.unnamed:
            # Due jobs of topics that others serve: put them within reach of those.
            await self._store.promote(shard, claimed.look.unnamed)
        return claimed.leases

    def claim_now(self) -> bool:
        """
        Claims are not hurried: batches come when the one before has ended.
        """
        return False

    # -- running ------------------------------------------------------------------------------------------

    async def _run(self, batch: Batch) -> None:
        """
        Run a batch, and begin to store its outcomes once those of the batch before it are stored.
        """
        endings = await batch.run(self._threads)
        self._batch = None
        if self._saving is not None:
            await self._saving
        # The next batch is claimed and begins while these are stored.
        self._saving = asyncio.get_running_loop().create_task(self._save(batch, endings))

    async def _save(self, batch: Batch, endings: Endings) -> None:
        stored, lost = await self._saver.save(endings.by_verb)
        self.running.drop(batch.leases)
        self.finished += stored
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
        self._stopping = True
        deadline_s = time.monotonic() + self._grace_s
        while self._busy() and time.monotonic() < deadline_s:
            await self._settle(deadline_s - time.monotonic())
        await self.give_back_all()

    async def give_back_all(self) -> None:
        """
        Give back what still runs, uncounted, and see that all else is stored.
        """
        self._stopping = True
        if self._batch is not None:
            self._batch.give_up(self._threads, "drain")
        deadline_s = time.monotonic() + SETTLE_S
        while self._busy() and time.monotonic() < deadline_s:
            await self._settle(deadline_s - time.monotonic())
        if left := self.running.held():
            # Claimed, and not begun.
            await self._saver.save(released(left).by_verb)
            self.running.drop(left)

    def _busy(self) -> bool:
        tasks = (self._task, self._saving)
        return self._claiming or any(task is not None and not task.done() for task in tasks)

    async def _settle(self, within_s: float) -> None:
        tasks = [task for task in (self._task, self._saving) if task is not None and not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=max(within_s, 0), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(0.01)

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
                "claimed": self.claimed,
                "finished": self.finished,
                "fenced": self.fenced,
            }
        )
