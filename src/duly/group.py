"""
Group commit: what piles up while one call is under way leaves together in the next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_JOBS = 250  #: of one call: about 3 ms of the server's time
MAX_BYTES = 1024 * 1024
HALF_AT_LEAST = 16  #: fewer are not worth a call of their own


class Group(Generic[Item, Answer]):
    """
    Callers of one verb on one shard, sharing script calls.

    A batch never holds two items of the same key: scripts want their members distinct.  Nor is one sent while
    another of its key is under way: they keep their order.

    With *halves*, many callers leave in two calls, and go on doing so: while the server works for one half,
    the other gets its answers and asks for more.  In one they would wait for the server, and it for them.
    """

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        *,
        key: Callable[[Item], Hashable],
        size: Callable[[Item], int],
        max_jobs: int = MAX_JOBS,
        halves: bool = False,
    ) -> None:
        self._send = send
        self._halves = halves
        self._key = key
        self._size = size
        self._max_jobs = max_jobs
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._senders: set[asyncio.Task[None]] = set()  #: two at most
        self._under_way: set[Hashable] = set()  #: keys
        self._leading = False  #: a caller sends its own item itself

    def add(self, item: Item) -> asyncio.Future[Answer]:
        """
        Join the next batch.  A caller that cancels the future before the batch left is not sent.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if not self._senders and not self._leading:
            self._start_sender()
        return future

    async def ask(self, item: Item) -> Answer:
        """
        Join the next batch and wait; a caller that meets nobody sends its item itself, which is quicker.
        """
        if self._leading or self._senders:
            return await self.add(item)
        self._leading = True
        try:
            [answer] = await self._send([item])
        finally:
            self._leading = False
            # Who came meanwhile leaves together now.
            if self._waiting and not self._senders:
                self._start_sender()
        return answer

    def _start_sender(self) -> None:
        self._senders.add(asyncio.get_running_loop().create_task(self._send_all()))

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                most = self._max_jobs
                if self._halves and len(self._senders) == 1 and len(self._waiting) >= 2 * HALF_AT_LEAST:
                    most = min(most, len(self._waiting) // 2)
                    self._start_sender()
                batch, keys = self._next_batch(most)
                if not batch:
                    # All have left, or the first follows one that is under way: its sender takes both.
                    break
                self._under_way |= keys
                try:
                    answers = await self._send([item for item, _ in batch])
                    pairs = list(zip(batch, answers, strict=True))
                except Exception as error:  # noqa: BLE001  # every caller is told, whatever it was
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                    continue
                except BaseException:
                    self._waiting[:0] = batch
                    raise
                finally:
                    self._under_way -= keys
                for (_, future), answer in pairs:
                    if not future.done():
                        future.set_result(answer)
                # Those who have more to send leave together again, not the first of them alone.
                await asyncio.sleep(0)
        finally:
            self._senders.remove(cast("asyncio.Task[None]", asyncio.current_task()))
            # Only a cancelled loop leaves callers behind; they must not wait for ever.
            if not self._senders:
                for _, future in self._waiting:
                    future.cancel()
                self._waiting.clear()

    def _next_batch(self, most: int) -> tuple[list[tuple[Item, asyncio.Future[Answer]]], set[Hashable]]:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        keys: set[Hashable] = set()
        size = taken = 0
        for item, future in self._waiting:
            if not future.done():
                key = self._key(item)
                size += self._size(item)
                if (
                    key in keys
                    or key in self._under_way
                    or (batch and (size > MAX_BYTES or len(batch) >= most))
                ):
                    break
                keys.add(key)
                batch.append((item, future))
            taken += 1
        del self._waiting[:taken]
        return batch, keys


def chunks(
    items: Sequence[Item],
    *,
    key: Callable[[Item], Hashable],
    size: Callable[[Item], int],
    max_jobs: int = MAX_JOBS,
) -> list[list[Item]]:
    """
    Cut many items into batches that one script call may take, in their order.
    """
    batches: list[list[Item]] = []
    batch: list[Item] = []
    keys: set[Hashable] = set()
    total = 0
    for item in items:
        name = key(item)
        total += size(item)
        if batch and (name in keys or total > MAX_BYTES or len(batch) >= max_jobs):
            batches.append(batch)
            batch, keys, total = [], set(), size(item)
        keys.add(name)
        batch.append(item)
    if batch:
        batches.append(batch)
    return batches
