"""
The recoverer: takes back jobs whose lease ran out without an answer.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.services.outlook import Outlook
    from duly.store import Store

log = logging.getLogger("duly.recoverer")


class Recoverer:
    """
    Recovers on one shard, unless time itself is in doubt.

    A step of the server's clock makes every lease look expired, and so does a
    server that was away for longer than a lease.  In both cases workers get
    one lease's time to extend what they hold, and no crash is counted.
    """

    def __init__(self, store: Store, shard: int, outlook: Outlook, *, every_s: float) -> None:
        self.every_s = every_s
        self._store = store
        self._shard = shard
        self._outlook = outlook
        self._lease_s = store.lease_ms / 1000
        self._baseline: tuple[float, int] | None = None  #: monotonic seconds, server ms
        self._hold_until_s = 0.0
        self._doubt = False

    def hold(self, why: str) -> None:
        """
        Recover nothing for one lease, and count no crash in the first recover after it.
        """
        log.warning("shard %d: %s; holding back recovery for %.0f s", self._shard, why, self._lease_s)
        self._hold_until_s = time.monotonic() + self._lease_s
        self._doubt = True

    async def run_once(self) -> int:
        """
        Recover what the last look says has run out, or look if nobody has for a while.
        """
        outlook = self._outlook
        self._watch_clock(outlook.seen_s, outlook.server_ms)
        if time.monotonic() < self._hold_until_s:
            return 0
        if not outlook.lease_over() and outlook.age_s() < 2 * self.every_s and not self._doubt:
            return 0
        doubt, self._doubt = self._doubt, False
        done = await self._store.recover(self._shard, counted=not doubt)
        self._watch_clock(time.monotonic(), done.now_ms)
        if done.recovered or done.buried:
            log.warning("shard %d: recovered %d jobs, buried %d as crashed", self._shard, done.recovered, done.buried)
        return done.recovered + done.buried

    def _watch_clock(self, seen_s: float, server_ms: int) -> None:
        """
        Compare how far the server's clock and ours went since the last look.
        """
        if not seen_s:
            return
        baseline, self._baseline = self._baseline, (seen_s, server_ms)
        if baseline is None or seen_s <= baseline[0]:
            return
        passed_s = seen_s - baseline[0]
        jump_s = (server_ms - baseline[1]) / 1000 - passed_s
        if abs(jump_s) > self._lease_s / 3:
            self.hold(f"the server's clock jumped by {jump_s:+.1f} s")
        elif passed_s > max(self._lease_s / 3, 3 * self.every_s):
            self.hold(f"the server was not reached for {passed_s:.1f} s")
