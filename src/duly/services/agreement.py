"""
The agreement: what was said of a topic comes to all shards, also where its caller died on the way.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.store import Store

log = logging.getLogger("duly.agreement")


class Agreement:
    """
    Brings changes of topics to the shards that are behind.

    Of the processes that share a queue only the one that leads its timers does so.
    """

    def __init__(self, store: Store, *, every_s: float, leads: Callable[[], bool] = lambda: True) -> None:
        self.every_s = every_s
        self._store = store
        self._leads = leads

    async def run_once(self) -> int:
        """
        Compare all shards; the answer is always 0, because this is never in a hurry.
        """
        brought = await self._store.catch_up() if self._leads() else 0
        if brought:
            log.info("brought what was said of topics to shards that were behind, %d times", brought)
        return 0
