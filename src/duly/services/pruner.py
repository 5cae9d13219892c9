"""
The pruner: forgets ended jobs past their time or beyond their bytes, and events that everybody has read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from duly.feed import Feed

if TYPE_CHECKING:
    from duly.store import Store

log = logging.getLogger("duly.pruner")

TRIM_FROM = 0.1  #: how full the event stream is before what consumers have read goes: others come back to it
WARN_FROM = 0.5  #: how full the event stream may be before its consumers are urged


class Pruner:
    """
    Prunes all shards, a bounded number of jobs at a time.
    """

    def __init__(self, store: Store, *, every_s: float = 15.0) -> None:
        self.every_s = every_s
        self._store = store
        self._feed = Feed(store)

    async def run_once(self) -> int:
        """
        Prune one batch on every shard; how many jobs that were.
        """
        pruned = 0
        for shard in range(self._store.shards):
            gone, _ = await self._store.prune(shard)
            pruned += gone
            fill = await self._feed.fill(shard)
            if fill >= TRIM_FROM and await self._feed.trim(shard):
                fill = await self._feed.fill(shard)
            if fill >= WARN_FROM and await self._feed.consumers(shard):
                log.warning(
                    "shard %d: the event stream is %.0f %% full and a registered consumer is behind; "
                    "beyond the bound it will see a gap",
                    shard,
                    100 * fill,
                )
        return pruned
