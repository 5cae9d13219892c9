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
LATE_S = 0.1  #: who waits behind a call for so long leaves in another


class Group(Generic[Item, Answer]):
    """
    Callers of one verb on one shard, sharing script calls.

    A batch never holds two items of the same key: scripts want their members distinct.  Nor is one sent while
    another of its key is under way: they keep their order.

    With *halves*, many callers leave in two calls, and go on doing so: while the server works for one half,
    the other gets its answers and asks for more.  In one they would wait for the server, and it for them.

    With *late_s*, a call that others have waited behind for so long holds them up no longer, be it that its
    connection fell silent.  Each such call doubles the time until the next: a silent server is not flooded.
    """

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        *,
        key: Callable[[Item], Hashable],
        size: Callable[[Item], int],
        max_jobs: int = MAX_JOBS,
        halves: bool = False,
        late_s: float | None = None,
    ) -> None:
        self._send = send
        self._halves = halves
        self._late_s = late_s
        self._key = key
        self._size = size
        self._max_jobs = max_jobs
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._under_way: set[Hashable] = set()  #: keys
        self._calls = 0  #: so far, which numbers them
        self._leading = 0  #: the call of a caller that sends its own item itself, 0 for none
        self._senders: dict[asyncio.Task[None], int] = {}  #: the call of each; two at most
        self._late: set[int] = set()  #: calls that nobody waits behind any more
        self._alarm: asyncio.TimerHandle | None = None

    def add(self, item: Item) -> asyncio.Future[Answer]:
        """
        Join the next batch.  A caller that cancels the future before the batch left is not sent.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if not self._senders and not self._leading:
            self._start_sender()
        elif self._alarm is None:
            self._set_alarm()
        return future

    async def ask(self, item: Item) -> Answer:
        """
        Join the next batch and wait; a caller that meets nobody sends its item itself, which is quicker.
        """
        key = self._key(item)
        if self._leading or self._senders or key in self._under_way:
            return await self.add(item)
        self._calls += 1
        self._leading = call = self._calls
        self._under_way.add(key)
        try:
            [answer] = await self._send([item])
        finally:
            self._under_way.discard(key)
            self._late.discard(call)
            if self._leading == call:
                self._leading = 0
            # Who came meanwhile leaves together now.
            self._go_on()
        return answer

    def _set_alarm(self) -> None:
        if self._late_s is not None:
            late_s = self._late_s * 2 ** len(self._late)
            self._alarm = asyncio.get_running_loop().call_later(late_s, self._overtake, self._calls)

    def _overtake(self, last: int) -> None:
        """
        Let who waits pass the calls up to the *last*: they have been under way for too long.
        """
        self._alarm = None
        if not self._waiting:
            return
        if 0 < self._leading <= last:
            self._late.add(self._leading)
            self._leading = 0
        for sender, call in list(self._senders.items()):
            if call <= last:
                # It ends with its call: another takes its place.
                self._late.add(call)
                del self._senders[sender]
        self._go_on()
        self._set_alarm()

    def _go_on(self) -> None:
        if self._waiting and not self._senders and not self._leading:
            self._start_sender()

    def _start_sender(self) -> None:
        sender = asyncio.get_running_loop().create_task(self._send_all())
        self._senders[sender] = self._calls + 1

    async def _send_all(self) -> None:
        sender = cast("asyncio.Task[None]", asyncio.current_task())
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        try:
            while sender in self._senders:
                most = self._max_jobs
                if self._halves and len(self._senders) == 1 and len(self._waiting) >= 2 * HALF_AT_LEAST:
                    most = min(most, len(self._waiting) // 2)
                    self._start_sender()
                batch, keys = self._next_batch(most)
                if not batch:
                    # All have left, or follow one of their key that is under way: its sender takes them.
                    del self._senders[sender]
                    break
                await self._send_batch(sender, batch, keys)
                # Those who have more to send leave together again, not the first of them alone.
                await asyncio.sleep(0)
            else:
                self._go_on()
        except BaseException:
            # Only the end of the loop ends a sender: nobody must wait for ever.
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._waiting.clear()
            self._senders.pop(sender, None)
            raise

    async def _send_batch(
        self,
        sender: asyncio.Task[None],
        batch: list[tuple[Item, asyncio.Future[Answer]]],
        keys: set[Hashable],
    ) -> None:
        self._calls += 1
        self._senders[sender] = call = self._calls
        self._under_way |= keys
        try:
            answers = await self._send([item for item, _ in batch])
            pairs = list(zip(batch, answers, strict=True))
        except Exception as error:  # noqa: BLE001  # every caller is told, whatever it was
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        finally:
            self._under_way -= keys
            self._late.discard(call)
            if sender in self._senders:
                self._senders[sender] = self._calls + 1
        for (_, future), answer in pairs:
            if not future.done():
                future.set_result(answer)

    def _next_batch(self, most: int) -> tuple[list[tuple[Item, asyncio.Future[Answer]]], set[Hashable]]:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        left: list[tuple[Item, asyncio.Future[Answer]]] = []
        keys: set[Hashable] = set()
        size = taken = 0
        for item, future in self._waiting:
            if not future.done():
                key = self._key(item)
                if key in self._under_way:
                    left.append((item, future))
                else:
                    size += self._size(item)
                    if key in keys or (batch and (size > MAX_BYTES or len(batch) >= most)):
                        break
                    keys.add(key)
                    batch.append((item, future))
            taken += 1
        self._waiting[:taken] = left
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
