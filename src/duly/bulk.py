"""
Bulk: many orders on their way, the next batch built while the server works on the last ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from duly.errors import SERVER_ERRORS, DulyError, OutcomeUnknown
from duly.group import MAX_BYTES, MAX_JOBS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from duly.job import JobKey, Order

IN_FLIGHT = 3  #: calls under way at once

Ticket = TypeVar("Ticket")
Answer = TypeVar("Answer")


class _UnderWay(NamedTuple):
    shard: int
    keys: set[JobKey]
    positions: list[int]
    task: asyncio.Task[Any]


class Bulk(Generic[Ticket, Answer]):
    """
    One `enqueue_many` or `hydrate`.  What a call has to know beside the order is its ticket.

    The same id twice is answered in order: a batch leaves only when no batch under way has a key of it.
    """

    def __init__(
        self,
        send: Callable[[int, list[tuple[Order, Ticket]]], Awaitable[list[Answer | DulyError]]],
        shards: int,
    ) -> None:
        self.answers: list[Any] = []
        self._send = send
        self._items: list[list[tuple[Order, Ticket]]] = [[] for _ in range(shards)]
        self._keys: list[set[JobKey]] = [set() for _ in range(shards)]
        self._positions: list[list[int]] = [[] for _ in range(shards)]
        self._bytes = [0] * shards
        self._under_way: deque[_UnderWay] = deque()

    async def add(self, shard: int, order: Order, ticket: Ticket) -> None:
        """
        Take one order; once a batch is full, this waits until it has left.
        """
        items, keys = self._items[shard], self._keys[shard]
        size = len(order.payload) + len(order.envelope)
        if items and (len(items) >= MAX_JOBS or order.key in keys or self._bytes[shard] + size > MAX_BYTES):
            await self._leave(shard)
            items, keys = self._items[shard], self._keys[shard]
        items.append((order, ticket))
        keys.add(order.key)
        self._bytes[shard] += size
        self._positions[shard].append(len(self.answers))
        self.answers.append(None)

    async def finish(self) -> list[Answer | DulyError]:
        """
        Send the rest; one answer for each order, in their order.
        """
        for shard, items in enumerate(self._items):
            if items:
                await self._leave(shard)
        while self._under_way:
            await self._settle()
        return self.answers

    def cancel(self) -> None:
        """
        Give up what is under way.
        """
        for each in self._under_way:
            each.task.cancel()

    async def _leave(self, shard: int) -> None:
        keys = self._keys[shard]
        while len(self._under_way) >= IN_FLIGHT or any(
            each.shard == shard and not each.keys.isdisjoint(keys) for each in self._under_way
        ):
            await self._settle()
        task = asyncio.ensure_future(self._send(shard, self._items[shard]))
        self._under_way.append(_UnderWay(shard, keys, self._positions[shard], task))
        self._items[shard], self._keys[shard], self._positions[shard] = [], set(), []
        self._bytes[shard] = 0
        # Lets the task write its call before the next batch is built.
        await asyncio.sleep(0)

    async def _settle(self) -> None:
        _, keys, positions, task = self._under_way[0]
        try:
            answers = await task
        except DulyError as error:
            # Other calls may have been accepted: the jobs of this one are told, the others keep theirs.
            answers = [error] * len(keys)
        self._under_way.popleft()
        for position, answer in zip(positions, answers, strict=True):
            self.answers[position] = answer


async def in_bulk(
    send: Callable[[int, list[tuple[Order, Ticket]]], Awaitable[list[Answer | DulyError]]],
    shards: int,
    items: Iterable[tuple[int, Order, Ticket]],
) -> list[Answer | DulyError]:
    """
    Send all of *items*, each with its shard and its ticket; one answer for each, in their order.
    """
    bulk = Bulk(send, shards)
    try:
        for shard, order, ticket in items:
            await bulk.add(shard, order, ticket)
        return await bulk.finish()
    except BaseException:
        bulk.cancel()
        raise


def unless_all_failed(answers: list[Answer | DulyError]) -> list[Answer | DulyError]:
    """
    The answers of a bulk.

    Raises:
        StoreUnavailable, OutcomeUnknown, ServerUnsuitable: That is what became of every single one.
    """
    failed = [each for each in answers if isinstance(each, SERVER_ERRORS)]
    if failed and len(failed) == len(answers):
        # Of some that nothing was changed does not hold for all.
        raise next((each for each in failed if isinstance(each, OutcomeUnknown)), failed[0])
    return answers
