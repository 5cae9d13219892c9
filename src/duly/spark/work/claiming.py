"""
Jobs for the next batch: claimed while the batch before it runs, if those are quick.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.job import Lane
from duly.store import Want

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.batchhandler import BatchHandler
    from duly.job import Lease
    from duly.services.outlook import Outlook
    from duly.spark.work.batch import Held
    from duly.store import Store

log = logging.getLogger("duly.batches")

#: The time to run counts from the claim: claimed jobs wait for no more than this part of it.
WAITING = 0.1


@dataclass(slots=True)
class Gathered:
    """
    Jobs that are to run together.
    """

    handler: BatchHandler
    begun_s: float  #: when the first of them was asked for
    leases: dict[str, Lease] = field(default_factory=dict)
    isolated: bool = False  #: there is one, which has to run by itself

    @property
    def is_full(self) -> bool:
        """
        Whether no more may join: there are many, or one that has to run by itself.
        """
        return self.isolated or len(self.leases) >= self.handler.max_rows

    def add(self, leases: Sequence[Lease]) -> None:
        """
        Let jobs join.
        """
        self.leases.update((lease.key.id, lease) for lease in leases)
        self.isolated = self.isolated or any(lease.lane is Lane.isolated for lease in leases)

    @property
    def patience_s(self) -> float:
        """
        How long they may wait for a batch that runs.
        """
        return WAITING * self.handler.ttr_ms / 1000


class Claims:
    """
    Claims batches for a worker, from all shards.
    """

    def __init__(self, store: Store, outlooks: list[Outlook], held: Held, *, worker: str, role: str) -> None:
        self.total = 0  #: jobs
        self.under_way = False
        self.stopping = False
        self._store = store
        self._outlooks = outlooks
        self._held = held
        self._worker = worker
        self._role = role
        self._room = False

    @property
    def makes_room(self) -> bool:
        """
        Whether nothing is claimed until all that is held has ended, so that a job can run isolated.
        """
        self._room = self._room and bool(self._held)
        return self._room

    async def worth_asking(self, handlers: Sequence[BatchHandler]) -> Sequence[BatchHandler]:
        """
        Return those of some handlers, in their order, whose topics have jobs on any shard.

        If none has, it is the first alone: a claim on each shard also tells what falls due there, and shows
        that this process is there.
        """
        if len(handlers) < 2:
            return handlers
        topics, found = [handler.topic for handler in handlers], set[str]()
        for shard in range(self._store.shards):
            now_ms = self._outlooks[shard].server_now_ms()
            found |= await self._store.topics_with_jobs(shard, topics, now_ms)
        return [handler for handler in handlers if handler.topic in found] or handlers[:1]

    async def gather(self, handler: BatchHandler) -> Gathered:
        """
        Claim a batch: as much as there is, up to the handler's limit, or one job that has to run isolated.
        """
        gathered = Gathered(handler, time.monotonic())
        await self.fill(gathered)
        return gathered

    async def fill(self, gathered: Gathered) -> None:
        """
        Claim what still fits into a batch.
        """
        before = len(gathered.leases)
        self.under_way = True
        try:
            for shard in self._shard_order():
                await self._fill_from(shard, gathered)
        except DulyError as error:
            if not gathered.leases:
                raise
            log.warning("claimed only a part of a batch of %s: %s", gathered.handler.topic, error)
        finally:
            self.under_way = False
            self.total += len(gathered.leases) - before

    async def _fill_from(self, shard: int, gathered: Gathered) -> None:
        while not gathered.is_full and not self.stopping and not self.makes_room:
            room = gathered.handler.max_rows - len(gathered.leases)
            fresh = await self._claim(shard, gathered.handler, room, first=not gathered.leases)
            self._held.hold(fresh)
            gathered.add(fresh)
            if not fresh:
                break

    def _shard_order(self) -> list[int]:
        # By chance, so that none starves.
        shards = list(range(self._store.shards))
        random.shuffle(shards)
        return shards

    async def _claim(self, shard: int, handler: BatchHandler, free: int, *, first: bool) -> Sequence[Lease]:
        sent_s = time.monotonic()
        claimed = await self._store.claim(
            shard,
            [Want(handler.topic, free, handler.ttr_ms)],
            worker=self._worker,
            limit=free,
            alone=first and not self._held,
            timer=self._worker,
            role=self._role,
        )
        self._outlooks[shard].note(claimed.look, sent_s)
        self._room = self._room or claimed.room
        return claimed.leases
