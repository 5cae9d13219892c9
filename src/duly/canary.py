"""
The canary: a write to every shard that leaves nothing behind, to see whether jobs could get through.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import DulyError, OutcomeUnknown, StoreUnavailable

if TYPE_CHECKING:
    from duly.store import Store

log = logging.getLogger("duly.canary")

FRESH_S = 1.0  #: how long an answer serves all who ask: asking often costs no more than asking once a second
LIMIT_S = 2.0  #: how long it may take


class Sang(NamedTuple):
    """
    What became of a canary.
    """

    reason: str = ""  #: empty: it is well
    detail: str = ""


class Canary:
    """
    Probes every shard.

    It makes no job: what users list, follow and count is theirs alone.
    """

    def __init__(self, store: Store, *, limit_s: float = LIMIT_S, fresh_s: float = FRESH_S) -> None:
        self._store = store
        self._limit_s, self._fresh_s = limit_s, fresh_s
        self._lock = asyncio.Lock()
        self._sang = Sang()
        self._at_s = float("-inf")

    async def sing(self) -> Sang:
        """
        How the last canary is, or if that was more than a moment ago, how a new one is.
        """
        async with self._lock:
            if time.monotonic() - self._at_s >= self._fresh_s:
                before, self._sang = self._sang, await self._send()
                if self._sang.reason != before.reason:
                    log.warning("%s", self._sang.detail or "the queue takes jobs again")
                self._at_s = time.monotonic()
            return self._sang

    async def _send(self) -> Sang:
        try:
            async with asyncio.timeout(self._limit_s):
                await asyncio.gather(*(self._store.probe(shard) for shard in range(self._store.shards)))
        except TimeoutError:
            return Sang("slow", f"the queue's server did not take a write within {self._limit_s:g} s")
        except (StoreUnavailable, OutcomeUnknown):
            return Sang("unreachable", "the queue's server cannot be reached, or refused a call")
        except DulyError as error:
            return Sang("failed", f"the queue's server did not take a write: {type(error).__name__}")
        return Sang()
