"""
What a shard knows of jobs, as it is stored; `duly.views` makes of it what people ask for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.store.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import JobKey

log = logging.getLogger("duly.store")

PER_READ = 100  #: jobs in one call: six things are asked of each
DAMAGED = [b""]  #: what the script answers for a job that cannot be read


class Reading(Upkeep):
    """
    What those need who look.
    """

    async def get(self, keys: Sequence[JobKey]) -> list[list[bytes]]:
        """
        All that is known of jobs, each at one moment: record, body kept apart, outcome, progress, due_ms and
        lease_ms; empty where there is none.

        A damaged one is none, and goes into quarantine.
        """

        async def send(shard: int, batch: list[JobKey]) -> list[list[bytes]]:
            fixed = self.keys[shard].fixed
            names = ("jobs", "bodies", "outcomes", "progress", "leases")
            keys = [*(fixed[name] for name in names), *(self.keys[shard].due(key.topic) for key in batch)]
            found: list[list[bytes]] = await self.link.run("get", keys, [key.member for key in batch])
            if DAMAGED in found:
                damaged = [key for key, about in zip(batch, found, strict=True) if about == DAMAGED]
                await self._put_aside(shard, damaged)
                found = [[] if about == DAMAGED else about for about in found]
            return found

        return await self._scatter(keys, send, max_jobs=PER_READ)

    async def _put_aside(self, shard: int, keys: Sequence[JobKey]) -> None:
        try:
            await self.audit(shard, [key.member for key in keys])
        except DulyError as error:
            # Who looks may be refused what writes; the auditor meets it, too.
            log.debug("cannot put damaged jobs into quarantine: %s", error)
