"""
The verbs of a lease: extend, progress, and the four endings of a run.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from duly.errors import DulyError
from duly.group import LATE_S, Group
from duly.ids import new_nonce
from duly.store.answers import check_held, refused
from duly.store.calls import Calls
from duly.store.packing import MAX_MS
from duly.store.values import PER_CALL, Ending, Finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import JobKey, Lease

ENDINGS: tuple[Ending, ...] = get_args(Ending)


class Leasing(Calls):
    """
    What a worker does with a lease that it has.
    """

    @cached_property
    def _finishes(self) -> dict[tuple[Ending, int], Group[Finish, bytes | DulyError]]:
        return {
            (verb, shard): self._finish_group(verb, shard) for verb in ENDINGS for shard in range(self.shards)
        }

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
