"""
Handing out: leases for workers that ask over HTTP, now or as soon as there is something.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import Unreadable, decode, decode_envelope
from duly.documents import told_options
from duly.durations import say_ms
from duly.errors import DulyError, JobNotFound, LeaseLost, OutcomeUnknown
from duly.failure import reason_document
from duly.http.tokens import token_of
from duly.records import leased_job
from duly.store import CLAIM_BYTES, Want

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from duly.app import Duly
    from duly.http.bells import Bells
    from duly.http.roster import HttpWorker, Roster
    from duly.job import Lease
    from duly.services.outlook import Outlook
    from duly.store import Claimed, Store

log = logging.getLogger("duly.http")

AGAIN_S = 0.5  #: between two tries to give back what a claim without an answer took


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
    priority: str
    due_at: str
    scheduled_for: str | None
    created_at: str | None
    updated_at: str | None
    lateness_ms: int
    lease_until: str
    ttr: float  #: seconds that the run may take
    expires: str | None
    retain: float | None
    backoff: dict[str, Any] | None
    callback: str | None
    reply_to: str | None


@dataclass(frozen=True, slots=True)
class Ask:
    """
    A claim as it was asked for.
    """

    topic: str
    limit: int
    lease_ms: int
    wait_s: float
    request_id: str | None = None
    key_id: str = ""  #: of the API key, if there is one

    def nonce(self, worker: str, shard: int) -> bytes:
        """
        What tells this claim from others on a shard: the same for the same request of a key and a worker.
        """
        if self.request_id is None:
            return b""
        words = f"{self.key_id}\n{worker}\n{self.topic}\n{self.request_id}\n{shard}"
        return hashlib.sha256(words.encode()).digest()[:8]

    def order(self, worker: str, shards: int) -> list[int]:
        """
        The shards in the order in which they are asked: by chance, and again the same for the same request.
        """
        chance = random.Random(self.nonce(worker, 0) or None)  # turns, not secrecy
        return chance.sample(range(shards), shards)


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
        self._giving_back: set[str] = set()  #: workers, by name
        self._end_s = math.inf  #: when nothing is tried again, on the monotonic clock
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def take(
        self,
        worker: HttpWorker,
        ask: Ask,
        gone: asyncio.Future[None],
        wait: Callable[[Iterable[asyncio.Future[Any]], float], Awaitable[None]],
    ) -> list[Lease]:
        """
        Claim, and *wait* for something to claim: until the time is over, or who asked has *gone*, or the
        service ends, which ends a wait, too.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ask.wait_s
        worker.polls += 1
        call: asyncio.Future[None] | None = None
        # What it holds and does not know of must not keep it from hearing of it.
        may_repeat = ask.request_id is not None
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
                leases: list[Lease] = []
                open_s: float | None = closed_s
                if not closed_s or may_repeat:
                    leases, open_s = await self._claim_whole(worker, ask)
                    open_s = closed_s or open_s
                    may_repeat = False
                left_s = deadline_s - loop.time()
                if leases or left_s <= 0:
                    return leases
                waited = (call or worker.opened(), gone)
                await wait(waited, left_s if open_s is None else min(left_s, open_s))
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
        open_s: float | None = None
        left = CLAIM_BYTES  #: of the whole answer, however many shards it comes from
        async with worker.lock:
            found = await self._taken_before(worker, ask)
            if found:
                return found, None
            for shard in ask.order(worker.name, self._store.shards):
                if worker.closed_s:
                    # By another claim of the same worker, or by what this one has found.
                    break
                try:
                    claimed = await self._claim_from(
                        shard,
                        worker,
                        ask,
                        ask.limit - len(found),
                        max_bytes=left,
                        wait_s=ask.wait_s if not found else 0.0,
                    )
                except DulyError as error:
                    if not found:
                        raise
                    log.warning("shard %d: %s; answering with what others had", shard, error)
                    break
                found += claimed.leases
                left -= sum(len(lease.payload) + len(lease.envelope) for lease in claimed.leases)
                if claimed.open_s is not None:
                    open_s = claimed.open_s if open_s is None else min(open_s, claimed.open_s)
                if len(found) >= ask.limit or left <= 0:
                    break
        return found, open_s

    async def _taken_before(self, worker: HttpWorker, ask: Ask) -> list[Lease]:
        """
        What the same claim took before and still runs, of all shards: none of them takes anything new while
        another one has some.

        Raises:
            DulyError: A shard does not say; what the others have stays leased for the next repeat.
        """
        shards = self._store.shards
        if ask.request_id is None or (shards == 1 and not worker.closed_s):
            # A single shard brings it by itself, instead of anything new.
            return []
        asked = [self._claim_from(shard, worker, ask, 0) for shard in range(shards)]
        said = await asyncio.gather(*asked, return_exceptions=True)
        found: list[Lease] = []
        for claimed in said:
            if isinstance(claimed, BaseException):
                raise claimed
            found += claimed.leases
        return found

    async def _claim_from(
        self,
        shard: int,
        worker: HttpWorker,
        ask: Ask,
        limit: int,
        *,
        max_bytes: int = CLAIM_BYTES,
        wait_s: float = 0.0,
    ) -> Claimed:
        ttr_ms = (self._app.handlers.get(ask.topic) or self._app.settings.defaults).ttr_ms
        sent_s = time.monotonic()
        try:
            claimed = await self._store.claim(
                shard,
                [Want(ask.topic, limit, ttr_ms)],
                worker=worker.name,
                limit=limit,
                max_bytes=max_bytes,
                half=worker.half,
                alone=not worker.running,
                wait_s=wait_s,
                timer=self._name,
                role=self._app.settings.role,
                lease_ms=ask.lease_ms,
                nonce=ask.nonce(worker.name, shard),
            )
        except OutcomeUnknown:
            if worker.name not in self._giving_back:
                # Whoever asked may never ask again.
                self._giving_back.add(worker.name)
                self.spawn(self._give_back_unanswered(worker, ask.lease_ms))
            raise
        self._outlooks[shard].note(claimed.look, sent_s)
        for lease in claimed.leases:
            self._roster.holds(worker, lease, ask.lease_ms)
        worker.makes_room = worker.makes_room or claimed.room
        return claimed

    async def _give_back_unanswered(self, worker: HttpWorker, lease_ms: int) -> None:
        """
        Give back what a claim took whose answer never came, trying until its lease is over.
        """
        over_s = time.monotonic() + lease_ms / 1000
        try:
            while self._store.has_unanswered(worker.name) and time.monotonic() < min(over_s, self._end_s):
                async with worker.lock:
                    try:
                        await self._store.give_back_unanswered(worker.name)
                    except DulyError as error:
                        log.warning("a claim of %s has no answer yet: %s", worker.name, error)
                        await asyncio.sleep(AGAIN_S)
        finally:
            self._giving_back.discard(worker.name)

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
        terms = self._app.handlers.get(lease.key.topic) or self._app.settings.defaults
        lateness_ms = max(lease.claimed_ms - lease.floor_ms, 0)
        job = leased_job(lease, envelope)
        own = {
            "max_attempts": envelope.max_attempts or terms.max_attempts,
            "ttr": lease.ttr_ms / 1000,
        }
        return LeasedJob(
            token=token_of(lease, lateness_ms),
            topic=lease.key.topic,
            id=lease.key.id,
            revision=lease.revision,
            payload=msgspec.Raw(payload),
            attempt=lease.attempt,
            crashes=lease.crashes,
            priority=job.priority,
            due_at=say_ms(lease.due_ms),  # type: ignore[arg-type]  # it has one
            scheduled_for=say_ms(job.scheduled_ms),
            created_at=say_ms(job.created_ms),
            updated_at=say_ms(job.updated_ms),
            lateness_ms=lateness_ms,
            lease_until=say_ms(lease.expires_ms),  # type: ignore[arg-type]  # likewise
            **told_options(job) | own,
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
        self._end_s = time.monotonic() + self._app.settings.drain_grace_ms / 1000
        await asyncio.gather(*self._tasks, return_exceptions=True)
