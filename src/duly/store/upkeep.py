"""
The verbs that keep a queue going, whoever works on it: promote, recover, prune, audit and the like.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING

from duly.ids import new_nonce
from duly.job import JobKey
from duly.store.answers import ms_of
from duly.store.calls import Calls
from duly.store.values import PER_CALL, Life, Look, Recovered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DUE_TOPICS = 64  #: topics that a promote names: those that the answer before spoke of
FORGET_WORKERS_MS = 24 * 3_600_000


class Upkeep(Calls):
    """
    What background duties need.
    """

    @cached_property
    def _due_topics(self) -> list[OrderedDict[str, None]]:
        return [OrderedDict() for _ in range(self.shards)]

    def expect_due(self, shard: int, topics: Iterable[str]) -> None:
        """
        Have the next promote name *topics*: something of them is due soon.
        """
        known = self._due_topics[shard]
        for topic in topics:
            known[topic] = None
            known.move_to_end(topic)
        while len(known) > DUE_TOPICS:
            known.popitem(last=False)

    async def promote(
        self, shard: int, *, timer: str = "", role: str = "auto", limit: int = PER_CALL, check: bool = False
    ) -> Look:
        """
        Move up to *limit* due jobs to their ready streams, each due topic its part of them.

        With *check* also wake somebody for ready jobs that nobody comes for.
        """
        moved_all, rewoken_all = 0, _names(())
        checking = "1" if check else "0"
        while True:
            names = tuple(self._due_topics[shard])
            fixed = {
                "nonce": new_nonce(),
                "limit": limit,
                "keep_ms": self.keeping.done_ms,
                "name": timer,
                "role": role,
                "check": checking,
            }
            answer = await self._run("promote", shard, names, fixed, names)
            now_ms, moved, next_due, next_lease, rank, peers, unnamed, more, rewoken, soon, micros = answer
            moved_all, rewoken_all = moved_all + moved, rewoken_all + _names(rewoken)
            look = Look(
                now_ms,
                moved_all,
                ms_of(next_due),
                ms_of(next_lease),
                rank,
                peers,
                _names(unnamed),
                more == b"1",
                rewoken_all,
                micros=micros,
            )
            # Every key of a script is declared: what it met and could not name is named in the next call.
            known = self._due_topics[shard] = OrderedDict.fromkeys(_names(unnamed)[-DUE_TOPICS:])
            self.expect_due(shard, _names(rewoken)[: DUE_TOPICS - len(known)])
            if more == b"1":
                self.expect_due(shard, names[: DUE_TOPICS - len(known)])
            self.expect_due(shard, _names(soon)[: DUE_TOPICS - len(known)])
            # Those that were met ready are looked at once; other ones may be met each time.
            if not unnamed or (checking != "1" and (moved_all or rewoken_all)):
                return look
            checking = "2" if check else "0"

    async def recover(self, shard: int, *, counted: bool = True) -> Recovered:
        """
        Take back jobs whose lease ran out without an answer.
        """
        recovered = buried = 0
        names: tuple[str, ...] = ()
        while True:
            fixed = {
                "nonce": new_nonce(),
                "limit": PER_CALL,
                "max_crashes": self.max_crashes,
                "counted": "1" if counted else "0",
                "keep_ms": self.keeping.dead_ms,
            }
            now_ms, back, dead, next_lease, unnamed = await self._run("recover", shard, names, fixed, names)
            recovered += back
            buried += dead
            if not unnamed:
                return Recovered(now_ms, recovered, buried, ms_of(next_lease))
            names = _names(unnamed)

    async def prune(self, shard: int, *, limit: int = PER_CALL) -> tuple[int, bool]:
        """
        Forget ended jobs past their time or beyond the bytes; how many, and whether there is more.
        """
        pruned, more = await self._run(
            "prune",
            shard,
            (),
            {
                "nonce": new_nonce(),
                "limit": limit,
                "max_done_bytes": self.keeping.done_bytes // self.shards,
                "max_dead_bytes": self.keeping.dead_bytes // self.shards,
            },
        )
        return pruned, more == b"1"

    async def audit(self, shard: int, members: Sequence[str]) -> tuple[int, list[tuple[int, int]]]:
        """
        Put some jobs back to where their records say they are.

        The answer is how much was mended, and state and weight of each job, state -1 where there is none.
        """
        topics = dict.fromkeys(JobKey.of(member).topic for member in members)
        fixed = {"nonce": new_nonce(), "keep_ms": self.keeping.done_ms, "member_count": len(members)}
        mended, _, words = await self._run("audit", shard, topics, fixed, (*members, *topics))
        return mended, [(int(state), int(weight)) for state, weight in (word.split() for word in words)]

    async def audit_due(self, shard: int, topic: str) -> int:
        """
        Put a topic back to where its earliest scheduled job says, and say whether that was wrong.
        """
        mended, _, _ = await self._run(
            "audit",
            shard,
            (topic,),
            {"nonce": new_nonce(), "keep_ms": self.keeping.done_ms, "member_count": 0},
            (topic,),
        )
        return int(mended)

    async def probe(self, shard: int) -> None:
        """
        Write to a shard as a job would, and leave nothing there.
        """
        await self._run("probe", shard, (), {"generation": self.generation() or ""})

    async def beat(self, worker: str, about: bytes) -> None:
        """
        Say that a worker lives, or with nothing to say about it, that it has gone.
        """
        # Every shard holds the last claim of a worker; only the first tells of the worker itself.
        for shard in range(self.shards):
            await self._run(
                "beat", shard, (), {"worker": worker, "about": about, "forget_ms": FORGET_WORKERS_MS}
            )

    async def lives(self) -> list[Life]:
        """
        The life that each shard's server is in, and what was approved of it.
        """
        found = [await self._run("life", shard, (), {}) for shard in range(self.shards)]
        return [
            Life(
                life.decode(),
                now_ms,
                server_ms,
                int(until_ms) if until_ms else None,
                record_id.decode(),
                int(number or 0),
            )
            for life, now_ms, server_ms, until_ms, record_id, number in found
        ]

    async def approve(
        self, record_id: str, generation: int, lives: Sequence[Life] = (), *, for_ms: int | None = None
    ) -> bool:
        """
        Let jobs be handed out: by its record, the queue on this server counts.

        With *lives*, only if each server is still in the life that was compared; False means another one
        answers now.  With *for_ms* the approval ends so long after *lives* were asked for.
        """
        for shard in range(self.shards):
            fixed = {
                "record_id": record_id,
                "generation": generation,
                "life": lives[shard].name if lives else "",
                "until_ms": "" if for_ms is None else lives[shard].server_ms + for_ms,
            }
            if await self._run("approve", shard, (), fixed) != b"ok":
                return False
        return True

    async def pace(self, run: str, jobs: int, rate: float) -> float:
        """
        How many seconds to wait before *jobs* of a run leave, so that all its processes together keep to
        *rate* jobs a second.
        """
        takes_us = max(1, round(jobs * 1_000_000 / rate))
        wait_us = await self._run("pace", 0, (), {"run": run, "takes_us": takes_us}, now=False)
        return int(wait_us) / 1_000_000


def _names(found: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(name.decode() for name in found)
