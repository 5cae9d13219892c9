"""
The verbs of reply queues: take and ack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.store.calls import Calls
from duly.store.values import CLAIM_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence


class Replying(Calls):
    """
    What those need who wait for replies.
    """

    async def reply_take(
        self, shard: int, name: str, limit: int, *, lease_ms: int
    ) -> tuple[int, list[tuple[int, bytes, bytes, bytes]], bool]:
        """
        Lease replies of the queue *name*, oldest first.

        The answer is how many were dropped unread, of each its number, member, head and outcome, and whether
        more were left out for their size.
        """
        fixed = {"name": name, "limit": limit, "max_bytes": CLAIM_BYTES, "lease_ms": lease_ms}
        dropped, taken, cut = await self._run("reply_take", shard, (), fixed)
        return dropped, list(zip(*(taken[at::4] for at in range(4)), strict=True)), bool(cut)

    async def reply_ack(self, shard: int, name: str, numbers: Sequence[int]) -> int:
        """
        Forget replies of the queue *name*; how many of them were still there.
        """
        gone: int = await self._run("reply_ack", shard, (), {"name": name}, numbers, now=False)
        return gone
