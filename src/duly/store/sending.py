"""
The verb that makes jobs: enqueue, for one and for many.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from duly.bulk import in_bulk, unless_all_failed
from duly.codec import ASKING
from duly.connection import Tries
from duly.errors import DulyError, OutcomeUnknown
from duly.group import LATE_S, Group
from duly.ids import new_nonce, request_of
from duly.job import JobState, Once, Placed
from duly.records import INLINE_BYTES, options_of
from duly.store.answers import placed_of
from duly.store.calls import Calls
from duly.store.packing import (
    ASKS_FOR_REPLY,
    AWAITED,
    FROM_NOW,
    HAS_OPTIONS,
    NOT_USUAL,
    NUMBER,
    ON_CONFLICT,
    SPEC,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duly.job import JobKey, Order


NEW = Once(b"")  #: a call that is made the first time

#: The server's time, the revision of the first that was created, and what became of each job.
Answered: TypeAlias = tuple[int, int, list[Any]]


class Sending(Calls):
    """
    What producers need.
    """

    @cached_property
    def _enqueues(self) -> list[Group[tuple[Order, bytes], Placed | DulyError]]:
        return [self._enqueue_group(shard) for shard in range(self.shards)]

    async def enqueue(self, order: Order) -> Placed:
        """
        Accept one job; calls that are under way together share a script call.

        Raises:
            JobExists: Its id is taken and ``on_conflict`` is "raise".
            QueueFull: Its topic is at the backlog limit.
            StoreUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        answer = await self._enqueues[self._shard(order.key)].ask((order, request_of(order)))
        if isinstance(answer, DulyError):
            raise answer
        return answer

    async def enqueue_many(self, orders: Iterable[Order]) -> list[Placed | DulyError]:
        """
        Accept any number of jobs; the answer holds one outcome for each, in their order.

        Raises:
            StoreUnavailable, OutcomeUnknown: What became of every single one, so that it is not overlooked.
        """
        items = ((self._shard(order.key), order, request_of(order)) for order in orders)
        return unless_all_failed(await in_bulk(self._enqueue, self.shards, items))

    def _enqueue_group(self, shard: int) -> Group[tuple[Order, bytes], Placed | DulyError]:
        async def send(batch: list[tuple[Order, bytes]]) -> list[Placed | DulyError]:
            return await self._enqueue(shard, batch)

        return Group(send, key=_order_key, size=_order_size, halves=True, late_s=LATE_S)

    async def _enqueue(self, shard: int, batch: list[tuple[Order, bytes]]) -> list[Placed | DulyError]:
        tries = Tries()
        placed = await self._place(shard, batch, tries)
        refused = [at for at, each in enumerate(placed) if isinstance(each, OutcomeUnknown)]
        if refused and not tries.maybe_ran:
            # As in `_remembered`: it is the time of this client that is wrong.
            await self._ask(shard)
            again = await self._place(shard, [batch[at] for at in refused], Tries())
            for at, each in zip(refused, again, strict=True):
                placed[at] = each
        return placed

    async def _place(
        self, shard: int, batch: list[tuple[Order, bytes]], tries: Tries
    ) -> list[Placed | DulyError]:
        answer = await self._add(shard, *batch[0]) if len(batch) == 1 else None
        now_ms, revision, answers = answer or await self._enqueue_all(shard, batch, tries)
        placed: list[Placed | DulyError] = []
        for (order, _), answer in zip(batch, answers, strict=True):
            if type(answer) is int:
                state = JobState.ready if answer <= now_ms else JobState.scheduled
                placed.append(Placed(order.key, "created", revision, answer, state))
                revision += 1
            else:
                placed.append(placed_of(order.key, answer))
        self._hear(shard, now_ms, revision - 1)
        return placed

    async def _enqueue_all(self, shard: int, batch: list[tuple[Order, bytes]], tries: Tries) -> Answered:
        topics: dict[str, None] = {}
        rest: list[Any] = []
        for order, request in batch:
            topics[order.key.topic] = None
            rest += (order.key.member, *_packed(order, request))
        fixed = {"nonce": new_nonce(), "topic_count": len(topics)}
        told: Tries | None = None
        if any(order.on_conflict == "replace" for order, _ in batch):
            told = tries
            fixed |= {"repeats": "1", "since": _since(batch), **await self._sent(shard)}
        else:
            fixed |= {"repeats": "0", "since": b"", "sent_ms": 0, "seen": 0}
        answer: Answered = await self._run("enqueue", shard, topics, fixed, (*topics, *rest), tries=told)
        return answer

    async def _add(self, shard: int, order: Order, request: bytes) -> Answered | None:
        """
        Accept one job the short way; None if that is not for it, and nothing was done.
        """
        spec, rest = _packed(order, request)
        if spec[0] & NOT_USUAL or len(rest) > INLINE_BYTES:
            return None
        key = order.key
        fixed = {"nonce": new_nonce(), "topic": key.topic, "member": key.member, "spec": spec, "rest": rest}
        answer: Answered | None = await self._run("add", shard, (key.topic,), fixed)
        return answer


def _packed(order: Order, request: bytes) -> tuple[bytes, bytes]:
    """
    A job as scripts are told of it: its spec, and what follows in the record.
    """
    options = options_of(order)
    spec = order.lane << 3 | ON_CONFLICT[order.on_conflict]
    if order.envelope.startswith(ASKING):
        spec |= ASKS_FOR_REPLY
    if options:
        spec |= HAS_OPTIONS
    if order.awaited:
        spec |= AWAITED
    rest = b"".join((request, options, order.envelope, order.payload))
    if order.due_ms is None:
        return SPEC.pack(spec | FROM_NOW, order.delay_ms or 0), rest
    return SPEC.pack(spec, order.due_ms), rest


def _since(batch: list[tuple[Order, bytes]]) -> bytes:
    """
    What the shard had given when each job was sent for the first time; empty if all are sent so now.
    """
    if not any(order.once is not None and order.once.since_ms for order, _ in batch):
        return b""
    return b"".join(NUMBER.pack((order.once or NEW).seen) for order, _ in batch)


def _order_key(item: tuple[Order, bytes]) -> JobKey:
    return item[0].key


def _order_size(item: tuple[Order, bytes]) -> int:
    return len(item[0].payload) + len(item[0].envelope)
