"""
The verbs of a worker: claim, extend, and the four endings of a run.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from duly.errors import DulyError
from duly.group import LATE_S, Group
from duly.ids import new_nonce
from duly.records import Terms, lease_of, worker_id
from duly.store.answers import check_held, ms_of, refused
from duly.store.calls import Calls
from duly.store.packing import MAX_MS
from duly.store.values import CLAIM_BYTES, PER_CALL, Claimed, Ending, Finish, Look

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from duly.job import JobKey, Lease
    from duly.store.values import Want

ENDINGS: tuple[Ending, ...] = get_args(Ending)


class Leasing(Calls):
    """
    What workers need.
    """

    @cached_property
    def _finishes(self) -> dict[tuple[Ending, int], Group[Finish, bytes | DulyError]]:
        return {
            (verb, shard): self._finish_group(verb, shard) for verb in ENDINGS for shard in range(self.shards)
        }

    async def claim(
        self,
        shard: int,
        wants: Sequence[Want],
        *,
        worker: str,
        limit: int = PER_CALL,
        half: str = "",
        alone: bool = True,
        wait_s: float = 0.0,
        looks: bool = False,
        broad: bool = False,
        callbacks: bool = False,
        timer: str = "",
        role: str = "auto",
        lease_ms: int | None = None,
    ) -> Claimed:
        """
        Lease ready jobs: at most the free slots of each topic, at most *limit* together.

        *half* is that of a group that crashed together, "0" or "1", of which the worker runs jobs already;
        *alone* says that it runs nothing at all, and so may take a job that has to run isolated.
        *wait_s* is how long it waits for more if slots stay free: what comes next is divided among workers
        that wait.  With *looks* it looks by itself when a job falls due meanwhile.
        *broad* says that it has more topics than it names here.
        With *callbacks* those that are to be delivered, and no others; without, all others.
        With *lease_ms* the leases have that length, and no grace beyond the time to run.
        After a lost reply the same call is sent again, and brings the same leases.
        """
        length_ms, grace_ms = (self.lease_ms, self.grace_ms) if lease_ms is None else (lease_ms, 0)
        args: list[Any] = []
        for topic, free, ttr_ms, processes in wants:
            args += (topic, free, ttr_ms, "" if processes is None else processes)
        fixed = {
            "nonce": new_nonce(),
            "worker": worker,
            "worker_id": worker_id(worker),
            "again": "0",
            "lease_ms": length_ms,
            "grace_ms": grace_ms,
            "limit": min(limit, PER_CALL),
            "max_bytes": CLAIM_BYTES,
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
        topics = [want.topic for want in wants]
        answer = await self._run("claim", shard, topics, fixed, args, again={"again": "1"})
        now_ms, next_due, foreign, next_lease, rank, peers, open_ms, look_ms, places, *more = answer
        room, resumed, leased, long, micros, rest = more
        mine = dict(zip((want.topic for want in wants), places, strict=True))
        look = Look(
            *(now_ms, 0, ms_of(next_due), ms_of(next_lease), rank, peers),
            foreign=foreign == b"1",
            look_ms=ms_of(look_ms),
            places=mine if looks else {},
            micros=micros,
        )
        open_s = None if open_ms == b"" else max(0.0, (int(open_ms) - now_ms) / 1000)
        if not leased:
            return Claimed([], look, open_s, room == b"1", tuple(topic.decode() for topic in rest))
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

    async def extend(self, shard: int, leases: Sequence[Lease], *, lease_ms: int | None = None) -> list[bool]:
        """
        Prolong leases, none past its time to run; False for each that is lost.

        With *lease_ms* they have that length from now, and no grace beyond the time to run.
        """
        length_ms, grace_ms = (self.lease_ms, self.grace_ms) if lease_ms is None else (lease_ms, 0)
        held: list[bool] = []
        for at in range(0, len(leases), PER_CALL):
            args: list[Any] = []
            for lease in leases[at : at + PER_CALL]:
                args += (lease.key.member, lease.fence_bytes, lease.ttr_ms)
            _, words = await self._run(
                "extend", shard, (), {"lease_ms": length_ms, "grace_ms": grace_ms}, args
            )
            held += [word == b"ok" for word in words]
        return held

    async def progress(self, lease: Lease, value: bytes) -> None:
        """
        Note how far a running job has come.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        word = await self._run(
            "progress",
            lease.shard,
            (),
            {"member": lease.key.member, "fence": lease.fence_bytes, "value": value},
            now=False,
        )
        check_held(lease, word)

    async def ack(self, lease: Lease, result: bytes = b"", *, lateness_ms: int = 0) -> None:
        """
        Finish the job that *lease* is for.

        Raises:
            LeaseLost: The lease ran out and the job may run elsewhere, or it was cancelled or replaced.
            JobNotFound: The job was pruned meanwhile.
        """
        await self._finish("ack", Finish(lease, lateness_ms, (result,)))

    async def retry(
        self,
        lease: Lease,
        delay_ms: int,
        error: bytes = b"",
        reason: str = "",
        *,
        counted: bool = True,
        lateness_ms: int = 0,
    ) -> None:
        """
        Schedule the job again; an uncounted retry is a snooze.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        own = (delay_ms, "1" if counted else "0", error, reason)
        await self._finish("retry", Finish(lease, lateness_ms, own))

    async def bury(self, lease: Lease, error: bytes = b"", reason: str = "", *, lateness_ms: int = 0) -> None:
        """
        End the job as dead.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        await self._finish("bury", Finish(lease, lateness_ms, (error, reason)))

    async def release(self, lease: Lease) -> None:
        """
        Give the job back, uncounted, ready at once.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        await self._finish("release", Finish(lease, 0, ()))

    async def _finish(self, verb: Ending, finish: Finish) -> None:
        word = await self._finishes[verb, finish.lease.shard].add(finish)
        if isinstance(word, DulyError):
            raise word
        check_held(finish.lease, word)

    def _finish_group(self, verb: Ending, shard: int) -> Group[Finish, bytes | DulyError]:
        async def send(batch: list[Finish]) -> list[bytes | DulyError]:
            return await self.finish(verb, shard, batch)

        return Group(send, key=_finish_key, size=_finish_size, max_jobs=PER_CALL, late_s=LATE_S)

    async def finish(self, verb: Ending, shard: int, batch: Sequence[Finish]) -> list[bytes | DulyError]:
        """
        End the runs of some jobs, all different: for each the word ok, lost or gone, or why it was refused.

        A batch that the server refuses is sent in halves, so that one job does not keep the others waiting.
        """
        try:
            return [*await self._finish_all(verb, shard, batch)]
        except DulyError as error:
            if not refused(error):
                raise
            if len(batch) == 1:
                return [error]
        half = len(batch) // 2
        return [
            *await self.finish(verb, shard, batch[:half]),
            *await self.finish(verb, shard, batch[half:]),
        ]

    async def _finish_all(self, verb: Ending, shard: int, batch: Sequence[Finish]) -> list[bytes]:
        topics = dict.fromkeys([finish.lease.key.topic for finish in batch])
        rest: list[Any] = []
        for lease, late_ms, own in batch:
            if not 0 <= late_ms <= MAX_MS:
                late_ms = min(max(late_ms, 0), MAX_MS)  # noqa: PLW2901  # what a record can hold of it
            rest += (lease.key.member, lease.fence_bytes)
            if verb == "ack":
                rest.append(late_ms.to_bytes(4) + own[0])
            elif verb != "release":
                rest += (late_ms, *own)
        fixed: dict[str, Any] = {"nonce": new_nonce(), "topic_count": len(topics)}
        if verb == "ack":
            fixed["keep_ms"] = self.keeping.done_ms
        elif verb == "bury":
            fixed["keep_ms"] = self.keeping.dead_ms
        # Only those that put jobs back touch what their topics have.
        touched = topics if verb in ("retry", "release") else ()
        words: list[bytes] = await self._run(verb, shard, touched, fixed, (*topics, *rest))
        return words


def _finish_key(finish: Finish) -> JobKey:
    return finish.lease.key


def _finish_size(finish: Finish) -> int:
    return sum(len(part) for part in finish.own if isinstance(part, bytes))
