"""
The response queue: what became of jobs that were sent with a ``reply_to``, told to whoever reads that name.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from duly.documents import error_of, value_of
from duly.errors import UsageError
from duly.job import Job, JobState
from duly.loops import running_loop
from duly.records import ended_job
from duly.waiting import RECHECK_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Self

    from duly.handlers import Handler
    from duly.store import Store
    from duly.waiting import Waiters

R = TypeVar("R")

log = logging.getLogger("duly.replies")

LEASE_S = 30  #: how long a reply that was handed out is kept from other readers
MAX_TAKEN = 100  #: of one call
AHEAD = 16  #: replies that a loop has in hand, at most
LONG_S = 20.0  #: one wait for replies, before it is asked again
#: How long a reply in hand may wait for its turn: when that begins, much of its lease must be left.
FRESH_S = LEASE_S / 2

_turns = itertools.count()
_ID = re.compile(r"([0-9]{1,5})-([0-9]{1,16})")


class Taken(NamedTuple):
    """
    What a look at a queue brought.
    """

    replies: list[Reply]
    dropped: int  #: unread, since the queue was empty last
    cut: bool = False  #: more were left out, as these are large enough together


class ReplyQueue(Protocol):
    """
    Where replies come from: the store, or a service.
    """

    async def ack(self, name: str, ids: Sequence[str]) -> int:
        """
        Forget replies; how many of them were still there.
        """

    async def take(self, name: str, *, limit: int, wait_s: float) -> Taken:
        """
        Lease replies, waiting for the first one.
        """

    async def peek(self, name: str, *, limit: int) -> Taken:
        """
        Return replies that no reader has, and leave them there.
        """


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What became of one job: its state, its times, its result or error.
    """

    id: str  #: of the reply; a job that is run again gives another one
    name: str  #: of the queue
    job: Job  #: as it was when it ended, without its payload
    _ack: Callable[[str, Sequence[str]], Awaitable[int]] = field(repr=False, compare=False)
    _read: Callable[[str, bytes], Any] = field(
        default=lambda _, outcome: value_of(outcome), repr=False, compare=False
    )

    @property
    def state(self) -> JobState:
        """
        How it ended: succeeded, dead or cancelled.
        """
        return self.job.state

    @property
    def result(self) -> Any:
        """
        What the handler returned; None if the job has not succeeded.

        Raises:
            Unreadable: It is not what the handler says it returns, where this app has it.
        """
        return self._read(self.job.topic, self.job.outcome) if self.state is JobState.succeeded else None

    def result_of(self, handler: Handler[..., R]) -> R | None:
        """
        What *handler* returned, as it says, also where another app has it; None if the job has not succeeded.

        Raises:
            UsageError: The job is one of another topic.
            Unreadable: The result is not what the handler says it returns.
        """
        if self.job.topic != handler.topic:
            raise UsageError(f"a reply of topic {self.job.topic} has no result of {handler!r}")
        if self.state is not JobState.succeeded:
            return None
        result: R = handler.reader.read(self.job.outcome or b"null")
        return result

    @property
    def error(self) -> dict[str, Any] | None:
        """
        Why it is dead or cancelled; None if it has succeeded.
        """
        return error_of(self.job)

    async def ack(self) -> None:
        """
        Forget it: it has been dealt with.  A second time changes nothing.
        """
        await self._ack(self.name, [self.id])


class StoreReplies:
    """
    Queues of replies in the store.
    """

    def __init__(
        self, store: Store, waiters: Waiters, resolve: Callable[[Job], Job] = lambda job: job
    ) -> None:
        """
        Prepare: *resolve* adds to a job what holds for it by the handlers and settings of its reader.
        """
        self._store = store
        self._waiters = waiters
        self._resolve = resolve

    async def take(self, name: str, *, limit: int, wait_s: float = 0.0) -> Taken:
        """
        Lease up to *limit* replies for `LEASE_S`, oldest first of each shard.

        It waits at most *wait_s* for the first.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        dropped = 0
        while True:
            with self._waiters.expecting(name) as told:
                async with self._waiters.gate:
                    taken = await self._look(name, limit, lease_ms=round(LEASE_S * 1000))
                # Told once by a queue that is empty: it must not be lost in a later look.
                dropped = max(dropped, taken.dropped)
                left_s = deadline - loop.time()
                if taken.replies or left_s <= 0:
                    return Taken(taken.replies, dropped)
                # A message may be lost with a connection, and a lease that runs out sends none.
                await asyncio.wait([told], timeout=min(left_s, RECHECK_S))

    async def peek(self, name: str, *, limit: int) -> Taken:
        """
        Return up to *limit* replies that no reader has, oldest first of each shard, and leave them to others.
        """
        return await self._look(name, limit, lease_ms=0)

    async def _look(self, name: str, limit: int, *, lease_ms: int) -> Taken:
        shards = self._store.shards
        turn = next(_turns)
        replies: list[Reply] = []
        dropped, cut = 0, False
        for step in range(shards):
            # Each look begins with another shard, so that none starves.
            shard = (turn + step) % shards
            unread, found, more = await self._store.reply_take(
                shard, name, limit - len(replies), lease_ms=lease_ms
            )
            dropped, cut = dropped + unread, cut or more
            for number, member, head, outcome in found:
                job = self._resolve(ended_job(member, head, outcome))
                replies.append(Reply(f"{shard}-{number}", name, job, self.ack))
            if len(replies) >= limit:
                break
        return Taken(replies, dropped, cut)

    async def ack(self, name: str, ids: Sequence[str]) -> int:
        """
        Forget replies; how many of them were still there.

        Raises:
            UsageError: One of *ids* is not that of a reply.
        """
        by_shard: dict[int, list[int]] = {}
        for id_ in ids:
            match = _ID.fullmatch(id_)
            if match is None:
                raise UsageError(f"{id_!r} is not the id of a reply: use the one that came with it")
            by_shard.setdefault(int(match[1]), []).append(int(match[2]))
        gone = 0
        for shard, numbers in by_shard.items():
            if shard < self._store.shards:
                for at in range(0, len(numbers), MAX_TAKEN):
                    gone += await self._store.reply_ack(shard, name, numbers[at : at + MAX_TAKEN])
        return gone


class Replies:
    """
    The replies of one queue, as they come: ``async for reply in app.replies(name)``.

    A reply is acked when the loop asks for the next one.  One that the loop was left with comes again after
    its lease, to whoever reads then, and so do those that were fetched ahead.
    """

    def __init__(
        self,
        open_: Callable[[], Awaitable[ReplyQueue]],
        name: str,
        wait_s: float | None,
        read: Callable[[str, bytes], Any],
    ) -> None:
        """
        Prepare: *read* makes of a topic and an outcome what the topic's handler returned.
        """
        self._open = open_
        self._read = read
        self._name = name
        self._wait_s = wait_s
        self._ahead: deque[Reply] = deque()
        self._fresh_until = 0.0
        self._limit = 1
        self._current: Reply | None = None
        self._dropped = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Reply:
        reply = await self.next()
        if reply is None:
            raise StopAsyncIteration
        return reply

    async def next(self) -> Reply | None:
        """
        Ack the reply before and return the next one; None where none came in the time that was said.
        """
        if self._current is not None:
            await self._current.ack()
            self._current = None
        loop = running_loop()
        if self._ahead and loop.time() > self._fresh_until:
            # Another reader may be given them before this one came to them: they come again.
            self._ahead.clear()
            self._limit = 1
        if not self._ahead:
            await self._fetch()
        if not self._ahead:
            return None
        self._current = replace(self._ahead.popleft(), _read=self._read)
        return self._current

    async def _ack_here(self, name: str, ids: Sequence[str]) -> int:
        """
        Forget replies, over the connections of the event loop that runs; how many of them were still there.
        """
        return await (await self._open()).ack(name, ids)

    async def _fetch(self) -> None:
        loop = running_loop()
        end = None if self._wait_s is None else loop.time() + self._wait_s
        while not self._ahead:
            left_s = LONG_S if end is None else min(max(end - loop.time(), 0.0), LONG_S)
            taken = await (await self._open()).take(self._name, limit=self._limit, wait_s=left_s)
            self._fresh_until = loop.time() + FRESH_S
            # A reply may be acked on another event loop than it came on.
            self._ahead.extend(replace(reply, _ack=self._ack_here) for reply in taken.replies)
            # Who is quick is given more at once.
            self._limit = min(2 * self._limit, AHEAD) if taken.replies else 1
            if taken.dropped > self._dropped:
                log.warning(
                    "%d replies of %s were dropped unread: they were too many, or older than a day",
                    taken.dropped,
                    self._name,
                )
            self._dropped = taken.dropped
            if end is not None and loop.time() >= end:
                return
