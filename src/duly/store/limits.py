"""
Backlog limits of topics: what was asked for, and the share of it at which each shard refuses jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from duly.store.agreement import Agreement, limit_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class Backlog(NamedTuple):
    """
    A topic that has a limit.
    """

    limit: int
    waiting: int  #: jobs that are scheduled or ready


class Limits(Agreement):
    """
    What those need who set limits, or keep them where no script can.
    """

    async def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait; None lifts the limit.

        Raises:
            OutcomeUnknown: A reply was lost, and the call was repeated too late to tell what became of it.
        """
        await self._say(topic, "limit", backlog)

    async def backlogs(self, topics: Sequence[str]) -> dict[str, Backlog]:
        """
        What waits in those of *topics* that have a limit, on all shards together.
        """
        first = await self._fields(0, topics, ("limit",))
        limited = [topic for topic, (share,) in zip(topics, first, strict=True) if share is not None]
        if not limited:
            return {}
        parts = ("limit", "asked", "limit_version", "scheduled", "ready")
        # One list for each shard, with the numbers of each topic.
        told = [await self._fields(shard, limited, parts) for shard in range(self.shards)]
        found: dict[str, Backlog] = {}
        for topic, of_shards in zip(limited, zip(*told, strict=True), strict=True):
            about = [
                {part: number for part, number in zip(parts, numbers, strict=True) if number is not None}
                for numbers in of_shards
            ]
            limit = limit_of(about)
            if limit is not None:
                waiting = sum(fields.get("scheduled", 0) + fields.get("ready", 0) for fields in about)
                found[topic] = Backlog(limit, waiting)
        return found

    async def _fields(
        self, shard: int, topics: Sequence[str], parts: Sequence[str]
    ) -> list[tuple[int | None, ...]]:
        """
        Numbers that a shard keeps of each of *topics*, None where there is none.
        """
        names = [f"{topic}:{part}" for topic in topics for part in parts]
        values = await self.link.call("HMGET", self.keys[shard].fixed["topics"], *names)
        numbers = iter([None if value is None else int(value) for value in values])
        return list(zip(*[numbers] * len(parts), strict=True))
