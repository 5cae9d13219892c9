"""
Claims: leases on ready jobs, and the wait for such jobs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from contextlib import suppress
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from duly.connection import CallRefused
from duly.errors import DulyError, JobNotFound, LeaseLost, StoreUnavailable
from duly.ids import new_nonce
from duly.records import Terms, lease_of, worker_id
from duly.store.answers import ms_of
from duly.store.leasing import Leasing
from duly.store.values import CLAIM_BYTES, PER_CALL, Claimed, Look

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from duly.job import Lease
    from duly.store.values import Want

log = logging.getLogger("duly.store")


class _Claim(NamedTuple):
    """
    A claim as it is sent: once more with the same nonce while its answer is missing.
    """

    shard: int
    worker: str
    wants: tuple[Want, ...]
    fixed: dict[str, Any]
    sent_s: float

    @property
    def lasts_s(self) -> float:
        """
        How long the leases that it brings last at least.
        """
        return float(self.fixed["lease_ms"]) / 1000


class Claims(Leasing):
    """
    What workers need to get jobs.
    """

    async def claim(
        self,
        shard: int,
        wants: Sequence[Want],
        *,
        worker: str,
        limit: int = PER_CALL,
        max_bytes: int = CLAIM_BYTES,
        half: str = "",
        alone: bool = True,
        wait_s: float = 0.0,
        looks: bool = False,
        broad: bool = False,
        callbacks: bool = False,
        timer: str = "",
        role: str = "auto",
        lease_ms: int | None = None,
        nonce: bytes = b"",
    ) -> Claimed:
        """
        Lease ready jobs: at most the free slots of each topic, at most *limit* together, and no further one
        whose body would make them more than *max_bytes*.

        *half* is that of a group that crashed together, "0" or "1", of which the worker runs jobs already;
        *alone* says that it runs nothing at all, and so may take a job that has to run isolated.
        *wait_s* is how long it waits for more if slots stay free: what comes next is divided among workers
        that wait.  With *looks* it looks by itself when a job falls due meanwhile.
        *broad* says that it has more topics than it names here.
        With *callbacks* those that are to be delivered, and no others; without, all others.
        With *lease_ms* the leases have that length, and no grace beyond the time to run.
        With a *nonce* of the caller's the same claim may be made again, by any process: as long as it is the
        last one of the worker on that shard, it brings the leases that it took and that still run.
        After a lost reply the same call is sent again, and brings the same leases.  If there is no answer
        even then, the next claim of the worker gives back what that one took, before it takes anything.
        With a record, jobs whose rows say that they have ended are settled, and not among what it brings.
        """
        await self.give_back_unanswered(worker)
        length_ms, grace_ms = (self.lease_ms, self.grace_ms) if lease_ms is None else (lease_ms, 0)
        fixed = {
            "nonce": nonce or new_nonce(),
            "worker": worker,
            "worker_id": worker_id(worker),
            "again": "maybe" if nonce else "0",
            "client": self._client,
            "claim_number": next(self._claim_numbers),
            "lease_ms": length_ms,
            "grace_ms": grace_ms,
            "limit": min(limit, PER_CALL),
            "max_bytes": max_bytes,
            "half": half,
            "alone": "1" if alone else "0",
            "wait_ms": round(wait_s * 1000),
            "looks_itself": "1" if looks else "0",
            "broad": "1" if broad else "0",
            "delivers": "1" if callbacks else "0",
            "keep_ms": self.keeping.done_ms,
            "name": timer,
            "role": role,
            "generation": self.generation() or "",
        }
        claim = _Claim(shard, worker, tuple(wants), fixed, monotonic())
        claimed = await self._send_claim(claim)
        if self.startable is None or not claimed.leases:
            return claimed
        try:
            return claimed._replace(leases=await self.startable(claimed.leases))
        except DulyError:
            raise  # they were given back
        except BaseException:
            self._keep_unanswered(claim)
            raise

    @cached_property
    def _client(self) -> bytes:
        return os.urandom(4)

    @cached_property
    def _claim_numbers(self) -> itertools.count[int]:
        return itertools.count(1)

    @cached_property
    def _unanswered(self) -> dict[tuple[str, int], _Claim]:
        """
        The claims without an answer, by worker and shard.
        """
        return {}

    async def _send_claim(self, claim: _Claim) -> Claimed:
        shard, _, wants, fixed, _ = claim
        args: list[Any] = []
        for topic, free, ttr_ms, processes in wants:
            args += (topic, free, ttr_ms, "" if processes is None else processes)
        topics = [want.topic for want in wants]
        try:
            answer = await self._run("claim", shard, topics, fixed, args, again={"again": "1"})
        except (StoreUnavailable, CallRefused):
            # This sending did nothing; an earlier one may have.
            raise
        except BaseException:
            self._keep_unanswered(claim)
            raise
        now_ms, next_due, foreign, next_lease, rank, peers, open_ms, look_ms, places, *more = answer
        room, resumed, leased, long, micros, rest = more
        mine = dict(zip(topics, places, strict=True))
        look = Look(
            *(now_ms, 0, ms_of(next_due), ms_of(next_lease), rank, peers),
            foreign=foreign == b"1",
            look_ms=ms_of(look_ms),
            places=mine if fixed["looks_itself"] == "1" else {},
            micros=micros,
        )
        open_s = None if open_ms == b"" else max(0.0, (int(open_ms) - now_ms) / 1000)
        if not leased:
            return Claimed([], look, open_s, room == b"1", tuple(topic.decode() for topic in rest))
        length_ms, grace_ms = fixed["lease_ms"], fixed["grace_ms"]
        about = {
            want.topic.encode(): Terms(
                want.topic, shard, now_ms, length_ms, grace_ms, want.ttr_ms, int(paused)
            )
            for want, paused in zip(wants, resumed, strict=True)
        }
        apart = dict(zip(long[::2], long[1::2], strict=True))
        leases = []
        for member, record in zip(leased[::2], leased[1::2], strict=True):
            terms = about[member[: member.index(b"/")]]
            leases.append(lease_of(member, record, apart.get(member, b"") if apart else b"", terms))
        return Claimed(leases, look, open_s, room == b"1", tuple(topic.decode() for topic in rest))

    def _keep_unanswered(self, claim: _Claim) -> None:
        unanswered = self._unanswered
        # The jobs of those that are older are recovered by now; workers over HTTP may never come back.
        for at, older in list(unanswered.items()):
            if claim.sent_s - older.sent_s > 2 * older.lasts_s:
                del unanswered[at]
        unanswered[claim.worker, claim.shard] = claim

    def has_unanswered(self, worker: str) -> bool:
        """
        Return whether there are claims of *worker* whose answers never came.
        """
        return any(claim.worker == worker for claim in self._unanswered.values())

    async def give_back_unanswered(self, worker: str) -> None:
        """
        Release what claims of *worker* took whose answers never came, uncounted.

        A worker calls it as soon as it can, whether or not it can take jobs: nobody extends those leases.

        Raises:
            StoreUnavailable, OutcomeUnknown: There is still no answer.
        """
        for claim in [claim for claim in self._unanswered.values() if claim.worker == worker]:
            # It is told of what the claim took, and takes nothing now.
            again = {"again": "1", "limit": 0, "wait_ms": 0, "looks_itself": "0"}
            taken = (await self._send_claim(claim._replace(fixed=claim.fixed | again))).leases
            if taken:
                log.warning("%d jobs of a claim without an answer go back, uncounted", len(taken))
                await asyncio.gather(*map(self._give_back, taken))
            self._unanswered.pop((worker, claim.shard), None)

    async def _give_back(self, lease: Lease) -> None:
        # One that is lost by now was recovered or cancelled.
        with suppress(LeaseLost, JobNotFound):
            await self.release(lease)

    async def wait(self, topics: Iterable[str], seconds: float) -> bool:
        """
        Wait until work may be ready for one of *topics*, at most *seconds*; True if something said so.
        """
        names = tuple(topics)
        keys = [self.keys[shard].wake(topic) for shard in range(self.shards) for topic in names]
        # The server's own time limit is only a bound: it is coarse, and nothing depends on when it ends.
        # A reply that got lost may have told of something: whoever waited looks, instead of waiting again.
        reply = await self.link.call(
            "BLPOP", *keys, max(seconds, 0.01), again=("PING",), block_s=max(seconds, 0.01)
        )
        return reply is not None

    async def has_ready(self, shard: int) -> bool:
        """
        Return whether jobs of any topic are ready.
        """
        return bool(await self.link.call("EXISTS", self.keys[shard].fixed["ready_topics"]))

    async def overlooked(self, shard: int, topics: Sequence[str]) -> tuple[bool, int | None]:
        """
        Return whether jobs of some topics are ready, and when the earliest scheduled one of them is due.
        """
        fixed = self.keys[shard].fixed
        ready = await self.link.call("HMGET", fixed["topics"], *(f"{topic}:ready" for topic in topics))
        dues = await self.link.call("ZMSCORE", fixed["next_due"], *topics)
        due_ms = min((int(float(due)) for due in dues if due is not None), default=None)
        return any(int(number or 0) > 0 for number in ready), due_ms

    async def topics_with_jobs(self, shard: int, topics: Sequence[str], now_ms: int) -> set[str]:
        """
        Return those of some topics that have ready jobs, or scheduled ones that are due at *now_ms*.
        """
        fixed = self.keys[shard].fixed
        ready = await self.link.call("HMGET", fixed["topics"], *(f"{topic}:ready" for topic in topics))
        dues = await self.link.call("ZMSCORE", fixed["next_due"], *topics)
        return {
            topic
            for topic, number, due in zip(topics, ready, dues, strict=True)
            if int(number or 0) > 0 or (due is not None and int(float(due)) <= now_ms)
        }

    async def ready_topics(self, shard: int, page: int) -> AsyncIterator[list[str]]:
        """
        The topics of a shard with ready or due jobs, page by page.
        """
        fixed, cursor = self.keys[shard].fixed, b"0"
        while True:
            cursor, found = await self.link.call("SSCAN", fixed["ready_topics"], cursor, "COUNT", page)
            yield [topic.decode() for topic in found]
            if cursor == b"0":
                return

    async def woken_place(self, shard: int) -> bytes:
        """
        The place in a shard behind all topics that were made ready so far.
        """
        last = await self.link.call("XREVRANGE", self.keys[shard].fixed["woken_topics"], "+", "-", "COUNT", 1)
        return last[0][0] if last else b"0-0"

    async def wait_broadly(
        self, places: Sequence[bytes], seconds: float
    ) -> list[tuple[int, bytes, list[str]]]:
        """
        Wait until topics are made ready, at most *seconds*: for each shard its next place, and their names.

        *places* are those of the answer before, one for each shard.
        """
        streams = [keys.fixed["woken_topics"] for keys in self.keys]
        block_ms = max(1, round(seconds * 1000))
        head = ("XREAD", "BLOCK", block_ms, "STREAMS")
        told = await self.link.call(*head, *streams, *places, block_s=block_ms / 1000)
        shards = {stream.encode(): shard for shard, stream in enumerate(streams)}
        found = []
        for stream, entries in told or ():
            names = [name for _, (_, some) in entries for name in some.decode().split()]
            found.append((shards[stream], entries[-1][0], names))
        return found
