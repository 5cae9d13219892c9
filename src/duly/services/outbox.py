"""
Successes on their way to the store: they leave together, and no task waits for each.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

from duly.errors import DulyError
from duly.group import LATE_S
from duly.outcome import Ack
from duly.pauses import Pauses
from duly.services.saving import save
from duly.services.telling import tell_successes
from duly.store import PER_CALL, Finish

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from duly.services.running import Run
    from duly.store import Store

log = logging.getLogger("duly.worker")

BATCH_BYTES = 1024 * 1024


class Outbox:
    """
    Stores successes, however long the store is away.
    """

    def __init__(
        self,
        store: Store,
        *,
        worker: str,
        spawn: Callable[[Coroutine[Any, Any, None], contextvars.Context | None], object],
        settled: Callable[[Run, bytes], None],
    ) -> None:
        """
        Prepare: *settled* is called with each run and the store's word about it.
        """
        self._store = store
        self._worker = worker
        self._spawn = spawn
        self._context = contextvars.copy_context()  #: that of no run: what is sent together is of many
        self._settled = settled
        self._waiting: list[list[tuple[Run, Finish]]] = [[] for _ in range(store.shards)]
        self._calls = 0  #: so far, which numbers them
        self._sending = [0] * store.shards  #: the call that others wait behind, 0 for none
        self._late: set[int] = set()  #: calls that nobody waits behind any more
        self._alarm: asyncio.TimerHandle | None = None

    def ack(self, run: Run, result: bytes) -> None:
        """
        Take over the success of a run.
        """
        shard = run.lease.shard
        self._waiting[shard].append((run, Finish(run.lease, run.lateness_ms(), (result,))))
        if not self._sending[shard]:
            self._start(shard)
        elif self._alarm is None:
            self._set_alarm()

    def _start(self, shard: int) -> None:
        self._calls += 1
        self._sending[shard] = self._calls
        self._spawn(self._send_all(shard, self._calls), self._context.copy())

    def _set_alarm(self) -> None:
        late_s = LATE_S * 2 ** len(self._late)
        self._alarm = asyncio.get_running_loop().call_later(late_s, self._overtake, self._calls)

    def _overtake(self, last: int) -> None:
        """
        Let what waits pass the calls up to the *last*, as in `duly.group`.
        """
        self._alarm = None
        for shard, call in enumerate(self._sending):
            if self._waiting[shard] and 0 < call <= last:
                self._late.add(call)
                self._start(shard)
        if any(self._waiting):
            self._set_alarm()

    async def _send_all(self, shard: int, call: int) -> None:
        try:
            while self._sending[shard] == call and self._waiting[shard]:
                await self._send(shard, self._next_batch(shard))
                self._late.discard(call)
                if self._sending[shard] == call:
                    self._calls += 1
                    self._sending[shard] = call = self._calls
        except asyncio.CancelledError:
            # The worker ends, and what it could not store is left to the leases.
            self._waiting[shard].clear()
            raise
        finally:
            self._late.discard(call)
            if self._sending[shard] == call:
                self._sending[shard] = 0

    async def _send(self, shard: int, batch: list[tuple[Run, Finish]]) -> None:
        pauses = Pauses()
        while True:
            try:
                words = await self._store.finish("ack", shard, [finish for _, finish in batch])
            except DulyError as error:
                # Unreachable or unknown: the same call again is safe, and the lease decides.
                log.warning("%d outcomes not stored yet: %s", len(batch), error, extra={"shard": shard})
                await asyncio.sleep(pauses.take())
                continue
            for (run, finish), word in zip(batch, words, strict=True):
                if isinstance(word, DulyError):
                    # Those behind it do not wait until it is stored or given up.
                    self._spawn(self._send_alone(run, finish), run.context)
                else:
                    self._settled(run, word)
            tell_successes((run for run, _ in batch), self._worker)
            return

    async def _send_alone(self, run: Run, finish: Finish) -> None:
        stored = await save(self._store, run, Ack(*finish.own), self._worker)
        self._settled(run, b"ok" if stored else b"lost")
        tell_successes([run], self._worker)

    def _next_batch(self, shard: int) -> list[tuple[Run, Finish]]:
        waiting = self._waiting[shard]
        batch = waiting[:PER_CALL]
        # A script wants its members distinct, and not too much at once.
        if len({run.member for run, _ in batch}) < len(batch) or _size(batch) > BATCH_BYTES:
            members: set[str] = set()
            for at, (run, _) in enumerate(batch):
                if run.member in members or (at and _size(batch[: at + 1]) > BATCH_BYTES):
                    batch = batch[:at]
                    break
                members.add(run.member)
        del waiting[: len(batch)]
        return batch


def _size(batch: list[tuple[Run, Finish]]) -> int:
    return sum([len(finish.own[0]) for _, finish in batch])
