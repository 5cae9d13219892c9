"""
The auditor: compares records, indexes, streams and counters, a bounded number at a time, and mends.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from duly.job import JobKey, JobState, Lane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from duly.store import Store

log = logging.getLogger("duly.auditor")

STEP = 100
COUNTABLE = 200_000  #: beyond this many jobs counters are not recounted: it would cost the worker its memory


class Auditor:
    """
    Walks through one shard after the other; each step looks at about a hundred jobs.
    """

    def __init__(self, store: Store, *, every_s: float = 15.0) -> None:
        self.every_s = every_s
        self._store = store
        self._steps: AsyncIterator[int] | None = None

    async def run_once(self) -> int:
        """
        Do one step; the answer is always 0, because an auditor is never in a hurry.
        """
        if self._steps is None:
            self._steps = self._walk()
        try:
            await anext(self._steps)
        except StopAsyncIteration:
            self._steps = None
        except BaseException:
            self._steps = None
            raise
        return 0

    async def run_pass(self) -> int:
        """
        Look at everything once; the answer is how much was mended.
        """
        return sum([mended async for mended in self._walk()])

    async def _walk(self) -> AsyncIterator[int]:
        for shard in range(self._store.shards):
            async for mended in self._walk_shard(shard):
                if mended:
                    log.warning("audit of shard %d mended %d", shard, mended, extra={"shard": shard})
                yield mended

    async def _walk_shard(self, shard: int) -> AsyncIterator[int]:
        fixed = self._store.keys[shard].fixed
        call = self._store.link.call
        began = await call("HGET", fixed["meta"], "events") or b"0"
        counts: Counter[str] = Counter()
        weights: Counter[str] = Counter()
        topics: set[str] = set()
        seen: set[str] = set()
        mended_all = 0
        for scan, name in (
            ("HSCAN", "jobs"),
            ("ZSCAN", "due"),
            ("ZSCAN", "leases"),
            ("ZSCAN", "done"),
            ("ZSCAN", "dead"),
        ):
            cursor = b"0"
            while True:
                cursor, found = await call(scan, fixed[name], cursor, "COUNT", STEP)
                members = list(dict.fromkeys(member.decode() for member in found[::2]))
                for at in range(0, len(members), STEP):
                    part = members[at : at + STEP]
                    mended, states = await self._store.audit(shard, part)
                    if name == "jobs":
                        for member, (state, weight) in zip(part, states, strict=True):
                            # A scan may return a member twice while the hash grows.
                            if state >= 0 and member not in seen and len(seen) < COUNTABLE:
                                topic = JobKey.of(member).topic
                                topics.add(topic)
                                counts[f"{topic}:{JobState(state).name}"] += 1
                                weights["dead" if state == JobState.dead else "done"] += weight
                        seen.update(part if len(seen) < COUNTABLE else ())
                    mended_all += mended
                    yield mended
                if cursor == b"0":
                    break
        for field in await call("HKEYS", fixed["topics"]):
            topics.add(field.decode().partition(":")[0])
        for topic in sorted(topics):
            for lane in Lane:
                yield await self._sweep(shard, topic, lane)
        if not mended_all and len(seen) < COUNTABLE:
            yield await self._recount(shard, began, topics, counts, weights)

    async def _sweep(self, shard: int, topic: str, lane: Lane) -> int:
        keys = self._store.keys[shard]
        after = b"-"
        dropped = 0
        while after:
            gone, after = await self._store.link.run(
                "sweep", [keys.fixed["jobs"], keys.stream(topic, lane)], [after, STEP]
            )
            dropped += gone
        return dropped

    async def _recount(
        self, shard: int, began: bytes, topics: set[str], counts: Counter[str], weights: Counter[str]
    ) -> int:
        """
        Mend counters, which is only possible when nothing moved while they were counted.
        """
        fixed = self._store.keys[shard].fixed
        args: list[object] = [began, weights["done"], weights["dead"]]
        for topic in topics:
            for state in JobState:
                field = f"{topic}:{state.name}"
                args += (field, counts[field])
        wrong = await self._store.link.run("recount", [fixed["meta"], fixed["topics"]], args)
        return len(wrong or ())
