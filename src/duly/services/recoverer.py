"""
The recoverer: takes back jobs whose lease ran out without an answer.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from duly.errors import DulyError

if TYPE_CHECKING:
    from duly.services.contact import Contact
    from duly.services.outlook import Outlook
    from duly.store import Store

log = logging.getLogger("duly.recoverer")

LONGEST_HOLD = 2  #: leases for which recovery is held back at most, however often a doubt is renewed


class Recoverer:
    """
    Recovers on one shard, unless time itself is in doubt.

    A step of the server's clock makes every lease look expired, and so does a
    server that was away for longer than a lease.  In both cases workers get
    one lease's time to extend what they hold, and no crash is counted.  A loop
    that was busy is no such case: the server was there for everybody else.
    """

    def __init__(
        self,
        store: Store,
        shard: int,
        outlook: Outlook,
        *,
        every_s: float,
        look_s: float = 1.0,
        contact: Contact | None = None,
    ) -> None:
        """
        Prepare: *look_s* is how far apart looks lie when all is well and there is nothing to do.

        *contact* knows whether the server was there while nobody looked.
        """
        self.every_s = every_s
        self.recovered = self.buried = 0  #: so far
        self._silence_s = max(store.lease_ms / 3000, 3 * look_s, 3 * every_s)
        self._store = store
        self._shard = shard
        self._outlook = outlook
        self._contact = contact
        self._lease_s = store.lease_ms / 1000
        self._baseline: tuple[float, float, int] | None = None  #: sent and seen, monotonic seconds; server ms
        self._heard_s: float | None = None  #: when the server answered last, as far as we know
        self._hold_until_s = 0.0
        self._doubt = False
        self._doubt_s = 0.0  #: since when
        self._unanswered = False  #: a call of ours was, since the server was heard last
        self._run_id: bytes | None = None  #: of the server as it was when asked last
        self._asked_s = 0.0  #: when that was
        self._loading_s = -math.inf  #: when it was last seen to load its data

    def hold(
        self, why: str, *, level: int = logging.WARNING, anew: bool = False, since_s: float | None = None
    ) -> None:
        """
        Recover nothing for one lease, and count no crash in what has run out by then.

        The lease counts from *since_s*, or from now; one that is over already holds nothing back.  A doubt
        that is renewed meanwhile prolongs that up to a bound, unless it begins *anew*.
        """
        now_s = time.monotonic()
        if since_s is None:
            since_s = now_s
        elif since_s + self._lease_s <= now_s:
            return
        if anew or not self._doubt:
            self._doubt, self._doubt_s = True, since_s
        until_s = min(since_s + self._lease_s, self._doubt_s + LONGEST_HOLD * self._lease_s)
        self._hold_until_s = max(self._hold_until_s, until_s)
        log.log(
            level,
            "shard %d: %s; holding back recovery for %.1f s",
            *(self._shard, why, max(0.0, self._hold_until_s - now_s)),
            extra={"shard": self._shard},
        )

    async def run_once(self) -> int:
        """
        Recover what the last look says has run out, or look if nobody has for a while.
        """
        outlook = self._outlook
        self._watch_clock(outlook.sent_s, outlook.seen_s, outlook.server_ms)
        if time.monotonic() < self._hold_until_s:
            return 0
        if not outlook.lease_over() and outlook.age_s() < self._silence_s and not self._doubt:
            return 0
        try:
            loaded = await self._watch_server()
        except DulyError:
            self._unanswered = True
            raise
        if not loaded:
            return 0
        # The first to hear of the server again may be us.
        self._watch_silence(time.monotonic())
        if time.monotonic() < self._hold_until_s:
            return 0
        sent_s = time.monotonic()
        done = await self._store.recover(self._shard, counted=not self._doubt)
        # One call takes a bounded number: as long as it leaves some behind, those are in doubt as well.
        self._doubt = self._doubt and done.next_lease_ms is not None and done.next_lease_ms <= done.now_ms
        self._watch_clock(sent_s, time.monotonic(), done.now_ms)
        self.recovered += done.recovered
        self.buried += done.buried
        if done.recovered or done.buried:
            log.warning(
                "shard %d: recovered %d jobs, buried %d as crashed",
                *(self._shard, done.recovered, done.buried),
                extra={"shard": self._shard},
            )
        return done.recovered + done.buried

    async def _watch_server(self) -> bool:
        """
        Hold back after a restart: while the server was away nobody could extend a lease.

        Workers have one lease from when it was there again, however late we ask.

        Returns:
            Whether the server has its data.
        """
        info = await self._store.link.call("INFO", "server", "persistence")
        told = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
        now_s = time.monotonic()
        if told.get(b"loading") == b"1":
            # It tells of itself, and nobody can extend a lease yet.
            self._loading_s = now_s
            return False
        run_id, uptime_s = told.get(b"run_id", b""), int(told.get(b"uptime_in_seconds", b"0"))
        known, self._run_id = self._run_id, run_id
        asked_s, self._asked_s = self._asked_s, now_s
        # Whole seconds: what says 2 may be nearly 3, so this is when it began at the latest.
        began_s = now_s - uptime_s
        there_s = max(began_s, self._loading_s)
        if known is None:
            self.hold("the server has just started", level=logging.INFO, since_s=there_s)
        elif known != run_id and began_s >= asked_s - 1:
            self.hold("the server was restarted", anew=True, since_s=there_s)
        elif known != run_id:
            # It ran beside the one before; when it took over is not known.
            self.hold("another server took over", anew=True)
        return True

    def _watch_clock(self, sent_s: float, seen_s: float, server_ms: int) -> None:
        """
        Compare how far the server's clock and ours went since the last look.

        The server looked at its clock at some time between sent and seen.  A loop
        that was blocked makes the two lie far apart, which is no jump.
        """
        if not seen_s:
            return
        baseline = self._baseline
        if baseline is not None and seen_s <= baseline[1]:
            return
        self._watch_silence(seen_s)
        self._baseline = (sent_s, seen_s, server_ms)
        if baseline is None:
            return
        passed_s = (server_ms - baseline[2]) / 1000
        least_s, most_s = sent_s - baseline[1], seen_s - baseline[0]
        jump_s = passed_s - most_s if passed_s > most_s else min(0.0, passed_s - least_s)
        if abs(jump_s) > self._lease_s / 3:
            self.hold(f"the server's clock jumped by {jump_s:+.1f} s")

    def _watch_silence(self, now_s: float) -> None:
        """
        Hold back if nothing was heard of the server for long, unless it was there and nobody listened.
        """
        heard_s, self._heard_s = self._heard_s, max(now_s, self._heard_s or now_s)
        unanswered, self._unanswered = self._unanswered, False
        if heard_s is None or now_s - heard_s <= self._silence_s:
            return
        if self._contact is not None and self._contact.lasted(heard_s, now_s):
            return
        # What we may only have missed is bounded; when nobody was answered, nobody could extend a lease.
        self.hold(f"nothing was heard of the server for {now_s - heard_s:.1f} s", anew=unanswered)
