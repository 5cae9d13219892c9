"""
The timer: sleeps until the next job is due, promotes it, and sleeps again.

Exact wake-up plus a safety scan: the scan runs whatever happens, because the
one that slept may have died.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from duly.services.outlook import CHECK_STEP_S, STAND_BY_S, STANDS_BY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duly.services.outlook import Outlook
    from duly.store import Look, Store

log = logging.getLogger("duly.timer")

ROOM_S = 0.25  #: how long the only worker may take to have room
STAYS_S = 3.0  #: how long what is due may stand in line for the next claim of the only worker
SCAN_SLACK = 1.25
TOLD_AT_ONCE = 100  #: messages that are read in one call


class Timer:
    """
    Promotes what is due on one shard.
    """

    every_s = 0.0  # it does its own sleeping, to the millisecond

    def __init__(
        self,
        store: Store,
        shard: int,
        outlook: Outlook,
        *,
        name: str,
        role: str,
        scan_s: float,
        claim: Callable[[], bool] = lambda: False,
        topics: Callable[[], Sequence[str] | None] = lambda: None,
    ) -> None:
        """
        Prepare: *claim* makes the worker of this process claim, now or when it has room; False if not.

        *topics* are those of which it could start a job now, None where nobody can tell.
        """
        self._store = store
        self._shard = shard
        self._outlook = outlook
        self._name = name
        self._role = role
        self._scan_s = scan_s
        self._claim = claim
        self._topics = topics
        self._again_s: float | None = None  #: when to see whether what was promoted has been taken

    async def run_once(self) -> int:
        """
        Sleep until a job is due or a scan is, then promote; woken by an earlier due time, return at once.
        """
        outlook = self._outlook
        # The claims of an idle worker are looks, too, one each scan: only where they stop is another due.
        sleep_s = SCAN_SLACK * self._scan_s - outlook.age_s()
        has_rank = outlook.rank <= STANDS_BY
        due_in_s, check_in_s = outlook.due_in_s(), outlook.check_in_s()
        if due_in_s is not None and has_rank:
            sleep_s = min(sleep_s, due_in_s + STAND_BY_S * outlook.rank)
        if check_in_s is not None and has_rank:
            sleep_s = min(sleep_s, check_in_s + CHECK_STEP_S * outlook.rank)
        last_look_in_s = None if has_rank else outlook.last_look_in_s()
        if last_look_in_s is not None:
            sleep_s = min(sleep_s, last_look_in_s)
        mine_in_s = outlook.mine_in_s()
        if mine_in_s is not None:
            sleep_s = min(sleep_s, mine_in_s)
        if self._again_s is not None:
            sleep_s = min(sleep_s, self._again_s - time.monotonic())
        if sleep_s > 0 and await outlook.changed(sleep_s):
            return 0
        mine_in_s = outlook.mine_in_s()
        if mine_in_s is not None and mine_in_s <= 0:
            outlook.looked()
            if self._claim():
                # What it takes starts a step earlier than if somebody promoted it.
                return 0
        last_look_in_s = None if has_rank else outlook.last_look_in_s()
        if last_look_in_s is not None and last_look_in_s <= 0:
            return await self._look_last()
        again = self._again_s is not None and self._again_s <= time.monotonic()
        if again:
            self._again_s = None
        check_in_s = outlook.check_in_s()
        check = check_in_s is not None and check_in_s <= 0
        if check:
            outlook.checked()
            if not await self._store.has_ready(self._shard):
                # The usual answer: whoever was woken has come.
                return 0
            if self._claim():
                # What nobody came for may be for this process itself; whatever is left is for others.
                await outlook.changed(STAND_BY_S)
            return await self._promote_and_look_again(check=True)
        # A claim promotes what it cannot take, and what it takes starts a step earlier: also a full worker is
        # given a moment, and one that claims all the time some more.  Where other processes work, too, the
        # first promotes, which wakes them in turn; but the one that was woken may have died, so whoever looks
        # after that claims what is still there.
        overdue_s = -(outlook.due_in_s() or 0.0)
        if (
            not outlook.foreign
            and overdue_s < STAYS_S
            and (again or outlook.rank or not outlook.peers)
            and self._claim()
            and await outlook.changed(STAND_BY_S if outlook.peers else ROOM_S)
        ):
            return 0
        return await self._promote_and_look_again(check=again)

    async def _look_last(self) -> int:
        """
        Look for what nobody came for: the ranks may be held by processes that died a moment ago.

        Those with a rank look for all topics; without one, a worker asks for its own, in two cheap reads, and
        claims only if there is something.  So many workers cost little.
        """
        outlook = self._outlook
        topics, is_overdue = self._topics(), outlook.is_overdue()
        has_seen = topics is not None and outlook.looked_since_check()
        outlook.checked()
        if not is_overdue and (has_seen or not await self._store.has_ready(self._shard)):
            return 0
        if topics is None:
            return (await self._promote_some(check=True)).moved
        sent_s = time.monotonic()
        is_ready, due_ms = await self._store.overlooked(self._shard, topics) if topics else (False, None)
        outlook.note_own_due(due_ms, sent_s)
        if is_ready or outlook.is_overdue():
            # The answer of the claim tells what is due next.
            outlook.note_own_due(None, sent_s)
            self._claim()
        return 0

    async def _promote_and_look_again(self, *, check: bool) -> int:
        moved = await self.promote(check=check)
        if moved and self._outlook.peers:
            self._again_s = time.monotonic() + (STANDS_BY + 1) * STAND_BY_S
        return moved

    async def promote(self, *, check: bool = False) -> int:
        """
        Promote what is due now, with *check* also wake workers again for what is ready; how many jobs.
        """
        moved = 0
        while True:
            look = await self._promote_some(check=check)
            check = False
            moved += look.moved + len(look.rewoken)
            mine_in_s = self._outlook.mine_in_s()
            # What others are to run must not keep this process from its own.
            if not (look.more or look.unnamed) or (mine_in_s is not None and mine_in_s <= 0):
                return moved

    async def _promote_some(self, *, check: bool) -> Look:
        sent_s = time.monotonic()
        look = await self._store.promote(self._shard, timer=self._name, role=self._role, check=check)
        self._outlook.note(look, sent_s)
        return look


class TimerBell:
    """
    Listens to the timer streams of all shards, each from the last id it saw, for an earlier due time.
    """

    every_s = 0.0

    def __init__(self, store: Store, outlooks: list[Outlook], *, listen_s: float = 5.0) -> None:
        self._store = store
        self._listen_s = listen_s
        keys = [shard.fixed["timer"].encode() for shard in store.keys]
        self._shards = dict(zip(keys, enumerate(outlooks), strict=True))
        # The newest entry is heard first, however old: it may be newer than the first look of this process.
        self._last = dict.fromkeys(keys, b"0-0")

    async def run_once(self) -> int:
        """
        Wait for one message, or for some seconds.
        """
        # Zero would block for ever.
        block_ms = max(1, int(self._listen_s * 1000))
        head = ("XREAD", "COUNT", TOLD_AT_ONCE, "BLOCK", block_ms, "STREAMS")
        reply = await self._store.link.call(*head, *self._last, *self._last.values(), block_s=block_ms / 1000)
        for key, entries in reply or ():
            for entry, fields in entries:
                self._last[key] = entry
                self._hear(*self._shards[key], dict(zip(fields[::2], fields[1::2], strict=True)))
            if len(entries) == TOLD_AT_ONCE:
                # So many came at once that some may have been trimmed before they were read.
                self._shards[key][1].look_now()
        return 0

    def _hear(self, shard: int, outlook: Outlook, told: dict[bytes, bytes]) -> None:
        dues = told[b"dues"].decode().split()
        self._store.expect_due(shard, dues[::2])
        for topic, due_ms in zip(dues[::2], dues[1::2], strict=True):
            outlook.note_due(int(float(due_ms)), topic)
        if told[b"check_ms"]:
            outlook.note_check(int(told[b"check_ms"]))
