"""
Stored jobs that cannot be read: scripts have put them aside, and people look at them and drop them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.store.calls import Calls
from duly.store.values import PER_CALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import JobKey


class Quarantine(Calls):
    """
    What is needed to look after damaged jobs.
    """

    async def quarantine_sizes(self) -> list[int]:
        """
        Return the number of jobs in quarantine, by shard.
        """
        return [await self.link.call("HLEN", keys.fixed["quarantine"]) for keys in self.keys]

    async def quarantined(
        self, shard: int, cursor: str = "0", limit: int = PER_CALL
    ) -> tuple[str, list[tuple[bytes, bytes]]]:
        """
        Return about *limit* members in quarantine with what is stored of each, and the cursor behind them,
        "0" at the end.  One may come twice.
        """
        key = self.keys[shard].fixed["quarantine"]
        after, found = await self.link.call("HSCAN", key, cursor, "COUNT", limit)
        return after.decode(), list(zip(found[::2], found[1::2], strict=True))

    async def quarantined_job(self, key: JobKey) -> tuple[bytes, bytes] | None:
        """
        Return what is stored of a job in quarantine, and the body kept apart; None if it is not there.
        """
        fixed = self.keys[self._shard(key)].fixed
        record: bytes | None = await self.link.call("HGET", fixed["quarantine"], key.member)
        if record is None:
            return None
        # A job that has the same id by now has a body of its own.
        reused = await self.link.call("HEXISTS", fixed["jobs"], key.member)
        body: bytes | None = None if reused else await self.link.call("HGET", fixed["bodies"], key.member)
        return record, body or b""

    async def drop(self, shard: int, members: Sequence[str | bytes]) -> list[bool]:
        """
        Remove jobs from quarantine for good; False for each that is not there.
        """
        answers: list[bool] = []
        for at in range(0, len(members), PER_CALL):
            part = members[at : at + PER_CALL]
            answers += [one == 1 for one in await self._run("drop", shard, (), {}, part, now=False)]
        return answers
