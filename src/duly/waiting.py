"""
Waiting for jobs to end, and for replies: told by the closing script, and checked each second all the same.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from duly.errors import JobNotFound
from duly.job import Ended, JobKey, JobState, shard_of
from duly.loops import start_beside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from duly.job import Job
    from duly.store import Store

FIRST_RECHECK_S, RECHECK_S = 0.05, 1.0  #: the first soon: what was accepted may still be on its way
LINGER_S = 10.0  #: how long the subscription outlives the last who waits: it hears of every job that ends
AT_ONCE = 16  #: looks under way; each has a connection, and thousands may wait


class Waiters:
    """
    Who waits for which job or queue of replies, over one subscription.
    """

    def __init__(
        self, store: Store, elsewhere: Callable[[JobKey], Awaitable[Job | None]] | None = None
    ) -> None:
        """
        Prepare: *elsewhere* is asked for jobs that the store does not hold, far ahead or over for long.
        """
        self._store = store
        self._elsewhere = elsewhere
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._rest: asyncio.TimerHandle | None = None  #: ends the listener, while nobody waits
        self.gate = asyncio.Semaphore(AT_ONCE)  #: for who looks

    async def ended(self, key: JobKey) -> Ended:
        """
        Wait until the job has ended, and return how.

        Raises:
            JobNotFound: There is no such job (any more).
        """
        soon_s = FIRST_RECHECK_S
        while True:
            with self.expecting(key.member) as told:
                found = await self._watched(key) or await self._found(key)
                if found.state.ended:
                    return found
                # A message may be lost with a connection: look again anyway.
                await asyncio.wait([told], timeout=soon_s)
                soon_s = min(2 * soon_s, RECHECK_S)

    @contextmanager
    def expecting(self, what: str) -> Iterator[asyncio.Future[None]]:
        """
        A future that is done when something is told of *what*: a job's member, or a queue of replies.

        Look only within, and nothing falls between look and wait.
        """
        loop = asyncio.get_running_loop()
        if self._rest is not None:
            self._rest.cancel()
        if self._listener is None or self._listener.done() or self._listener.cancelling():
            self._listener = start_beside(self._listen())
        future: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(what, set())
        waiting.add(future)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(what) is waiting:
                del self._waiting[what]
            if not self._waiting:
                self._rest = loop.call_later(LINGER_S, self._listener.cancel)

    async def _watched(self, key: JobKey) -> Ended | None:
        """
        What the store says; of a job that has not ended its state.
        """
        match await self._watch(key):
            case [state, _, outcome, gone]:
                return Ended(JobState(state), outcome, result_gone=bool(gone))
            case [state, _]:
                return Ended(JobState(state), b"")
        return None

    async def _found(self, key: JobKey) -> Ended:
        """
        What somebody else knows of a job that the store does not hold, or not yet.
        """
        job = None if self._elsewhere is None else await self._elsewhere(key)
        if job is None:
            msg = f"there is no job {key}: it was pruned, or never was"
            raise JobNotFound(msg)
        return Ended(job.state, job.outcome, job.result_gone)

    async def _watch(self, key: JobKey) -> list[Any]:
        its_keys = self._store.keys[shard_of(key.topic, key.id, self._store.shards)]
        keys = [its_keys.fixed["jobs"], its_keys.fixed["outcomes"], its_keys.due(key.topic)]
        async with self.gate:
            answer: list[Any] = await self._store.link.run("watch", keys, [key.member])
        return answer

    async def _listen(self) -> None:
        channels = [keys.fixed["ended_channel"] for keys in self._store.keys]
        async for channel, member in self._store.link.listen(*channels):
            if channel:
                _wake(self._waiting.get(member.decode(), ()))
                continue
            # Subscribed, for the first time or again: what was published before may be missed, so look again.
            for waiting in self._waiting.values():
                _wake(waiting)

    async def aclose(self) -> None:
        """
        Stop listening.
        """
        if self._rest is not None:
            self._rest.cancel()
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
