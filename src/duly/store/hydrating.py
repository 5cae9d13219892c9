"""
The verbs that bring jobs from a table: that of the record, or that of far-future jobs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duly.bulk import in_bulk, unless_all_failed
from duly.codec import ASKING
from duly.errors import Conflict, DulyError, StoreUnavailable
from duly.events import offset_of
from duly.group import MAX_JOBS
from duly.ids import new_nonce, new_request
from duly.job import JobState
from duly.records import options_of
from duly.store.answers import hydrated_of
from duly.store.calls import Calls
from duly.store.packing import HAS_OPTIONS, MAX_COUNT, PROMISE, PROMISED_REPLY, SPEC
from duly.store.values import Upto

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duly.job import JobKey, Order
    from duly.store.values import Hydrated, Promise, Thawed


class Hydrating(Calls):
    """
    What those need who keep jobs outside of the queue.
    """

    # -- what a record promised ---------------------------------------------------------------------------

    async def hydrate(
        self,
        promises: Iterable[Promise],
        *,
        generation: int | None = None,
        read_ms: int | None = None,
        reason: str = "cancelled",
    ) -> list[Hydrated | DulyError]:
        """
        Take over jobs from their rows; one outcome for each, in their order.

        A job is made where there is none, and replaces one of a lower revision in whatever state: a
        run of that is told to stop.  One of an equal or higher revision is kept.  No limit refuses it.

        With a *generation* only a queue takes them that was found sound, and in that one: rows that were read
        before a loss may have ended since.  With *read_ms*, when rows were read, they are refused once the
        queue may have forgotten what ended since.  The *reason* is that of those that were cancelled.

        Raises:
            StoreUnavailable, OutcomeUnknown: What became of every single one.  The same call again is safe.
        """
        said = {
            "generation": "" if generation is None else generation,
            "read_ms": "" if read_ms is None else read_ms,
            "reason": reason,
        }
        send = partial(self._hydrate, said=said)
        items = ((self._shard(promise.order.key), promise.order, promise) for promise in promises)
        return unless_all_failed(await in_bulk(send, self.shards, items))

    async def _hydrate(
        self, shard: int, batch: list[tuple[Order, Promise]], said: dict[str, Any]
    ) -> list[Hydrated | DulyError]:
        topics: dict[str, None] = {}
        rest: list[Any] = []
        for order, promise in batch:
            topics[order.key.topic] = None
            options = options_of(order)
            mark = order.lane << 3 | (JobState.cancelled if promise.cancelled else JobState.scheduled)
            if options:
                mark |= HAS_OPTIONS
            asks = order.envelope.startswith(ASKING)
            if asks:
                mark |= PROMISED_REPLY
            counts = min(promise.attempts, MAX_COUNT), min(promise.crashes, MAX_COUNT)
            head = PROMISE.pack(mark, order.due_ms or 0, promise.revision, *counts)
            # One that is cancelled is not to run: its envelope tells who is to be told, and who made it.
            body = (order.envelope,) if promise.cancelled else (order.envelope, order.payload)
            rest += (order.key.member, head, b"".join((promise.request, options, *body)))
        fixed = {
            "nonce": new_nonce(),
            "keep_ms": self.keeping.done_ms,
            "topic_count": len(topics),
            **said,
        }
        answer = await self._run("hydrate", shard, topics, fixed, (*topics, *rest))
        if answer == b"stale":
            raise StoreUnavailable("these rows were read too long ago, and have to be read again")
        words, newest = answer
        upto = Upto(shard, offset_of(*newest)) if newest else None
        return [hydrated_of(order.key, word, upto) for (order, _), word in zip(batch, words, strict=True)]

    async def forget(self, past: Iterable[tuple[JobKey, int]]) -> list[bool]:
        """
        Let go of jobs in whatever state, up to a revision each; False where there was none, or a later one.

        For those whose rows say that they are over.  A run of one is told to stop.
        """
        pairs = list(past)
        highest: dict[JobKey, int] = {}
        for key, revision in pairs:
            highest[key] = max(revision, highest.get(key, 0))

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            topics = dict.fromkeys(key.topic for key in batch)
            rest: list[Any] = []
            for key in batch:
                rest += (key.member, highest[key])
            fixed = {"nonce": new_nonce(), "topic_count": len(topics)}
            words: list[bytes] = await self._run("forget", shard, topics, fixed, (*topics, *rest))
            return words

        keys = list(highest)
        said = dict(zip(keys, await self._scatter(keys, send), strict=True))
        return [said[key] == b"forgotten" for key, _ in pairs]

    # -- far-future jobs ----------------------------------------------------------------------------------

    async def thaw(self, orders: Iterable[Order], number: int, *, early: bool = False) -> list[Thawed]:
        """
        Take jobs from their table of far-future jobs in pass *number*; one word for each, in their order.

        A job that is here already, or was taken by an earlier attempt at the same pass, is kept.  What was
        cancelled or rescheduled meanwhile is not taken, or is due then.  With *early*, only the latter.

        Raises:
            Conflict: A later pass has begun.
            StoreUnavailable, OutcomeUnknown: Some may not be taken.  The same call again is safe.
        """

        async def send(shard: int, batch: list[tuple[Order, bytes]]) -> list[Any]:
            words = await self._thaw(shard, batch, number, early=early)
            if words == b"over":
                return [Conflict(f"pass {number} is over: another hydrate has begun a later one")] * len(
                    batch
                )
            return [word.decode() for word in words]

        items = ((self._shard(order.key), order, new_request()) for order in orders)
        answers: list[Any] = await in_bulk(send, self.shards, items)
        for answer in answers:
            if isinstance(answer, DulyError):
                raise answer
        return answers

    async def _thaw(self, shard: int, batch: list[tuple[Order, bytes]], number: int, *, early: bool) -> Any:
        topics: dict[str, None] = {}
        rest: list[Any] = []
        for order, request in batch:
            topics[order.key.topic] = None
            options = options_of(order)
            asks = PROMISED_REPLY if order.envelope.startswith(ASKING) else 0
            head = SPEC.pack(order.lane << 3 | (HAS_OPTIONS if options else 0) | asks, order.due_ms or 0)
            rest += (order.key.member, head, b"".join((request, options, order.envelope, order.payload)))
        fixed = {
            "nonce": new_nonce(),
            "pass": number,
            "early": "1" if early else "0",
            "topic_count": len(topics),
        }
        return await self._run("thaw", shard, topics, fixed, (*topics, *rest))

    async def settle(self, number: int, forget: Sequence[tuple[JobKey, bytes]] = ()) -> int:
        """
        End pass *number*, which is committed, and forget changes for which no far-future job was found.
        """
        by_shard: dict[int, list[Any]] = {shard: [] for shard in range(self.shards)}
        for key, change in forget:
            by_shard[self._shard(key)] += (key.member, change)
        forgotten = 0
        for shard, changes in by_shard.items():
            # Once at least, for the end of the pass.
            for at in range(0, len(changes) or 1, 2 * MAX_JOBS):
                part = changes[at : at + 2 * MAX_JOBS]
                forgotten += await self._run("settle", shard, (), {"pass": number}, part, now=False)
        return forgotten
