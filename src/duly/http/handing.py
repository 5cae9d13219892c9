"""
Handing out: leases for workers that ask over HTTP, now or as soon as there is something.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import Unreadable, decode, decode_envelope, reason_document
from duly.durations import say_time
from duly.errors import DulyError, JobNotFound, LeaseLost
from duly.http.tokens import token_of
from duly.job import moment
from duly.store import Want

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from duly.app import Duly
    from duly.http.bells import Bells
    from duly.http.roster import HttpWorker, Roster
    from duly.job import Lease
    from duly.services.outlook import Outlook
    from duly.store import Store

log = logging.getLogger("duly.http")

TTR_MS = 300_000  #: of a topic whose handler is not known here
MAX_ATTEMPTS = 5  #: likewise


class LeasedJob(msgspec.Struct, kw_only=True):
    """
    A job to run, and the token that ends its run.
    """

    token: str
    topic: str
    id: str
    revision: int
    payload: msgspec.Raw
    context: dict[str, Any] | None
    attempt: int
    max_attempts: int
    crashes: int
    due_at: str
    lateness_ms: int
    lease_until: str
    ttr_ms: int


@dataclass(frozen=True, slots=True)
class Ask:
    """
    A claim as it was asked for.
    """

    topic: str
    limit: int
    lease_ms: int
    wait_s: float


class Claims:
    """
    Leases for who asks over HTTP.
    """

    def __init__(
        self, app: Duly, store: Store, bells: Bells, roster: Roster, outlooks: list[Outlook], name: str
    ) -> None:
        self._app = app
        self._store = store
        self._bells = bells
        self._roster = roster
        self._outlooks = outlooks
        self._name = name  #: of the timer in this process
        self._tasks: set[asyncio.Task[None]] = set()
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def take(self, worker: HttpWorker, ask: Ask, gone: asyncio.Future[None]) -> list[Lease]:
        """
        Claim, and wait for something to claim: until the time is over, or who asked has *gone*.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ask.wait_s
        worker.polls += 1
        call: asyncio.Future[None] | None = None
        try:
            while True:
                closed_s = worker.closed_s
                if closed_s and call is not None:
                    # Others are called in its place.
                    self._bells.leave(ask.topic, call)
                    call = None
                elif not closed_s and ask.wait_s and (call is None or call.done()):
                    # In line before it looks, so that no token falls between look and wait.
                    call = self._bells.join(ask.topic)
                leases, open_s = ([], closed_s) if closed_s else await self._claim_whole(worker, ask)
                left_s = deadline_s - loop.time()
                if leases or left_s <= 0:
                    return leases
                waited = (call or worker.opened(), gone, self.ending)
                wait_s = left_s if open_s is None else min(left_s, open_s)
                await asyncio.wait(waited, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if gone.done() or self.ending.done():
                    return []
        finally:
            worker.polls -= 1
            if call is not None:
                self._bells.leave(ask.topic, call)

    async def _claim_whole(self, worker: HttpWorker, ask: Ask) -> tuple[list[Lease], float | None]:
        """
        Claim; if who asks is cancelled meanwhile, what comes is given back.

        Returns: the leases, and in how many seconds to ask again for what was left to others.
        """
        task = asyncio.create_task(self._claim(worker, ask))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:

            async def give_back() -> None:
                await self.give_back((await task)[0])

            self.spawn(give_back())
            raise

    async def _claim(self, worker: HttpWorker, ask: Ask) -> tuple[list[Lease], float | None]:
        handler = self._app.handlers.get(ask.topic)
        ttr_ms = handler.ttr_ms if handler else TTR_MS
        found: list[Lease] = []
        open_s: float | None = None
        async with worker.lock:
            for shard in random.sample(range(self._store.shards), self._store.shards):
                if worker.closed_s:
                    # By another claim of the same worker, or by what this one has found.
                    break
                free = ask.limit - len(found)
                sent_s = time.monotonic()
                try:
                    claimed = await self._store.claim(
                        shard,
                        [Want(ask.topic, free, ttr_ms)],
                        worker=worker.name,
                        limit=free,
                        half=worker.half,
                        alone=not worker.running,
                        wait_s=ask.wait_s if not found else 0.0,
                        timer=self._name,
                        role=self._app.settings.role,
                        lease_ms=ask.lease_ms,
                    )
                except DulyError as error:
                    if not found:
                        raise
                    log.warning("shard %d: %s; answering with what others had", shard, error)
                    break
                self._outlooks[shard].note(claimed.look, sent_s)
                found += claimed.leases
                for lease in claimed.leases:
                    self._roster.holds(worker, lease, ask.lease_ms)
                worker.makes_room = worker.makes_room or claimed.room
                if claimed.open_s is not None:
                    open_s = claimed.open_s if open_s is None else min(open_s, claimed.open_s)
                if len(found) >= ask.limit:
                    break
        return found, open_s

    def view(self, lease: Lease) -> LeasedJob | None:
        """
        Describe a leased job; one that cannot be read is buried instead, as any worker would.
        """
        try:
            envelope = decode_envelope(lease.envelope)
            payload = lease.payload or b"null"
            decode(payload)
        except Unreadable as error:
            self._roster.ended(lease.fence_bytes)
            self.spawn(self._bury(lease, str(error)))
            return None
        handler = self._app.handlers.get(lease.key.topic)
        lateness_ms = max(lease.claimed_ms - lease.floor_ms, 0)
        return LeasedJob(
            token=token_of(lease, lateness_ms),
            topic=lease.key.topic,
            id=lease.key.id,
            revision=lease.revision,
            payload=msgspec.Raw(payload),
            context=envelope.context,
            attempt=lease.attempt,
            max_attempts=envelope.max_attempts or (handler.max_attempts if handler else MAX_ATTEMPTS),
            crashes=lease.crashes,
            due_at=say_time(moment(lease.due_ms)),  # type: ignore[arg-type]  # it has one
            lateness_ms=lateness_ms,
            lease_until=say_time(moment(lease.expires_ms)),  # type: ignore[arg-type]  # likewise
            ttr_ms=lease.ttr_ms,
        )

    async def _bury(self, lease: Lease, why: str) -> None:
        try:
            await self._store.bury(lease, reason_document("unreadable", why), "unreadable")
        except DulyError as error:
            log.warning("could not bury %s, which cannot be read: %s", lease.key, error)

    async def give_back(self, leases: list[Lease]) -> None:
        """
        Release jobs that nobody was told of.
        """
        said = await asyncio.gather(*(self._store.release(lease) for lease in leases), return_exceptions=True)
        for lease, error in zip(leases, said, strict=True):
            self._roster.ended(lease.fence_bytes)
            if isinstance(error, BaseException) and not isinstance(error, LeaseLost | JobNotFound):
                log.warning("could not release %s: %s", lease.key, error)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """
        Do something beside the request.
        """
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """
        Finish what is under way.
        """
        await asyncio.gather(*self._tasks, return_exceptions=True)
