"""
Waiting for jobs to end, and for replies: told by the closing script, and checked each second all the same.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from duly.errors import JobNotFound
from duly.job import JobKey, JobState, shard_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from duly.job import Job
    from duly.store import Store

FIRST_RECHECK_S, RECHECK_S = 0.05, 1.0  #: the first soon: what was accepted may still be on its way
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
        self.gate = asyncio.Semaphore(AT_ONCE)  #: for who looks

    async def ended(self, key: JobKey) -> tuple[JobState, bytes]:
        """
        Wait until the job has ended; its state and its outcome.

        Raises:
            JobNotFound: There is no such job (any more).
        """
        soon_s = FIRST_RECHECK_S
        while True:
            with self.expecting(key.member) as told:
                state, outcome = await self._watched(key) or await self._found(key)
                if state.ended:
                    return state, outcome
                # A message may be lost with a connection: look again anyway.
                await asyncio.wait([told], timeout=soon_s)
                soon_s = min(2 * soon_s, RECHECK_S)

    @contextmanager
    def expecting(self, what: str) -> Iterator[asyncio.Future[None]]:
        """
        A future that is done when something is told of *what*: a job's member, or a queue of replies.

        Look only within, and nothing falls between look and wait.
        """
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(what, set())
        waiting.add(future)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(what) is waiting:
                del self._waiting[what]

    async def _watched(self, key: JobKey) -> tuple[JobState, bytes] | None:
        answer = await self._watch(key)
        return (JobState(int(answer[0])), answer[2] if len(answer) > 2 else b"") if answer else None

    async def _found(self, key: JobKey) -> tuple[JobState, bytes]:
        """
        What somebody else knows of a job that the store does not hold, or not yet.
        """
        job = None if self._elsewhere is None else await self._elsewhere(key)
        if job is None:
            msg = f"there is no job {key}: it was pruned, or never was"
            raise JobNotFound(msg)
        return job.state, job.outcome

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
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
