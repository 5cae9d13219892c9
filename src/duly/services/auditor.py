"""
The auditor: compares records, indexes, streams and counters, a bounded number at a time, and mends.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from duly.due import counted_topics, scan
from duly.job import JobKey, JobState, Lane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from duly.store import Store

log = logging.getLogger("duly.auditor")

STEP = 100
SCANNED = 80  #: a scan brings some more than it was asked for, and these should not cost a step of their own
STEPS = 10  #: in one go, each a call of a millisecond or less
PACE_S = 1.0  #: between two goes of a pass: a thousand jobs a second
COUNTABLE = 200_000  #: beyond this many jobs counters are not recounted: it would cost the worker its memory


class Auditor:
    """
    Walks through one shard after the other; each step looks at about a hundred jobs.

    Of the processes that share a queue only the one that leads its timers audits it.
    """

    def __init__(
        self, store: Store, *, every_s: float = 15.0, leads: Callable[[], bool] = lambda: True
    ) -> None:
        """
        Prepare: *every_s* is how long to rest between two passes.
        """
        self.every_s = every_s
        self._rest_s = every_s
        self._leads = leads
        self._store = store
        self._steps: AsyncIterator[int] | None = None
        self._quarantined = 0  #: as far as the log was told

    async def run_once(self) -> int:
        """
        Do some steps; the answer is always 0, because an auditor is never in a hurry.
        """
        if self._steps is None and not self._leads():
            return 0
        self._steps = self._steps or self._walk()
        self.every_s = min(PACE_S, self._rest_s)
        try:
            for _ in range(STEPS):
                await anext(self._steps)
        except StopAsyncIteration:
            self._steps = None
            self.every_s = self._rest_s
        except BaseException:
            self._steps = None
            self.every_s = self._rest_s
            raise
        return 0

    async def run_pass(self) -> int:
        """
        Look at everything once; the answer is how much was mended.
        """
        return sum([mended async for mended in self._walk()])

    async def _walk(self) -> AsyncIterator[int]:
        await self._tell_quarantined()
        for shard in range(self._store.shards):
            async for mended in self._walk_shard(shard):
                if mended:
                    log.warning("audit of shard %d mended %d", shard, mended, extra={"shard": shard})
                yield mended

    async def _tell_quarantined(self) -> None:
        """
        Log that there are more damaged jobs than at the pass before, whichever script has met them.
        """
        before, self._quarantined = self._quarantined, sum(await self._store.quarantine_sizes())
        if self._quarantined > before:
            log.error("%d damaged jobs in quarantine: see duly jobs quarantine ls", self._quarantined)

    async def _walk_shard(self, shard: int) -> AsyncIterator[int]:
        fixed = self._store.keys[shard].fixed
        call = self._store.link.call
        began = await call("HGET", fixed["meta"], "events") or b"0"
        counts: Counter[str] = Counter()
        weights: Counter[str] = Counter()
        topics: set[str] = set()
        seen: set[str] = set()
        mended_all = 0
        keys = self._store.keys[shard]
        due: dict[str, str] = {}
        async for page in scan(self._store.link, "ZSCAN", fixed["next_due"]):
            due |= {keys.due(name.decode()): name.decode() for name, _ in page}
            if len(page) >= STEP:
                yield 0
        for index in (fixed["jobs"], *due, fixed["leases"], fixed["done"], fixed["dead"]):
            name = "jobs" if index == fixed["jobs"] else "index"
            cursor = b"0"
            while True:
                command = "HSCAN" if name == "jobs" else "ZSCAN"
                cursor, found = await call(command, index, cursor, "COUNT", SCANNED)
                members = list(dict.fromkeys(member.decode() for member in found[::2]))
                # Its own topic does not know of a job that stands in the index of another.
                if strays := [m for m in members if index in due and JobKey.of(m).topic != due[index]]:
                    yield await call("ZREM", index, *strays)
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
        topics.update(due.values())
        async for names in counted_topics(self._store.link, keys):
            topics |= names
            if len(names) >= STEP:
                yield 0
        for topic in sorted(topics):
            if await call("EXISTS", *keys.lanes(topic)[: len(Lane)]):
                for lane in Lane:
                    yield await self._sweep(shard, topic, lane)
            yield await self._store.audit_due(shard, topic)
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
