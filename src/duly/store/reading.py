"""
What a shard knows of jobs, as it is stored; `duly.views` makes of it what people ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.store.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import JobKey

PER_READ = 100  #: jobs in one call: six things are asked of each


class Reading(Calls):
    """
    What those need who look.
    """

    async def get(self, keys: Sequence[JobKey]) -> list[list[bytes]]:
        """
        All that is known of jobs, each at one moment: record, body kept apart, outcome, progress, due_ms and
        lease_ms; empty where there is none.
        """

        async def send(shard: int, batch: list[JobKey]) -> list[list[bytes]]:
            fixed = self.keys[shard].fixed
            names = ("jobs", "bodies", "outcomes", "progress", "leases")
            keys = [*(fixed[name] for name in names), *(self.keys[shard].due(key.topic) for key in batch)]
            found: list[list[bytes]] = await self.link.run("get", keys, [key.member for key in batch])
            return found

        return await self._scatter(keys, send, max_jobs=PER_READ)
