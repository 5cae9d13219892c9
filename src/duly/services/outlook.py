"""
What a process knows of a shard's near future, from the last answer of any script that looked.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.store import Look


STAND_BY_S = 0.02  #: how much later each stand-by looks
STANDS_BY = 2  #: the last of those that look at a due time at all


class Outlook:
    """
    When the next job falls due and the next lease ends, on this process's monotonic clock.

    Claims, promotes and timer messages all feed it, so one look serves timer,
    recoverer and worker alike, and an idle worker asks the server little.
    """

    def __init__(self) -> None:
        self.rank = 3
        self.peers = 0  #: other processes that work
        self.foreign = False  #: what is due next is for other processes
        self.sent_s = 0.0  #: when the last look that succeeded was sent
        self.seen_s = 0.0  #: and when its answer was there
        self.server_ms = 0
        self._due_s: float | None = None
        self._told_s = 0.0  #: when that was told
        self._lease_s: float | None = None
        self._mine_s: float | None = (
            None  #: when to look by itself for what falls due of this process's topics
        )
        self._places: dict[str, int] = {}  #: of this process among those that look, by topic
        self._check_s: float | None = None  #: when to see whether anybody came for what was made ready
        self._changed: asyncio.Future[bool] | None = None

    def note(self, look: Look, sent_s: float) -> None:
        """
        Take over what a script saw; *sent_s* is when it was asked, on the monotonic clock.
        """
        self.sent_s = sent_s
        self.seen_s = time.monotonic()
        self.server_ms = look.now_ms
        self.rank, self.peers, self.foreign = look.rank, look.peers, look.foreign
        # Counted from the answer, not from the question: early would be a wasted wake-up.
        base = (sent_s + self.seen_s) / 2 - look.micros / 1_000_000
        due_s = None if look.next_due_ms is None else base + (look.next_due_ms - look.now_ms) / 1000
        # What was told since it was asked may be newer than this answer: the earlier one counts until the
        # next look.
        if sent_s >= self._told_s or self._is_earlier(due_s):
            self._due_s, self._told_s = due_s, self.seen_s
        self._lease_s = (
            None if look.next_lease_ms is None else base + (look.next_lease_ms - look.now_ms) / 1000
        )
        if look.places is not None:
            self._places = look.places
            self._mine_s = None if look.look_ms is None else base + (look.look_ms - look.now_ms) / 1000
        self._tell()

    def note_due(self, due_ms: int, topic: str = "") -> None:
        """
        Take over an earlier due time of a topic that the timer stream told of.
        """
        place = self._places.get(topic)
        if place is not None and place <= STANDS_BY:
            mine_s = self.seen_s + (due_ms - self.server_ms) / 1000 + STAND_BY_S * place
            if self._mine_s is None or mine_s < self._mine_s:
                self._mine_s = mine_s
                self._tell()
        self._told_s = time.monotonic()
        # Before the first look the server's clock is not known: the next one will tell.
        due_s = self.seen_s + (due_ms - self.server_ms) / 1000 if self.seen_s else self._told_s
        if self._is_earlier(due_s):
            self._due_s = due_s
            self._tell()

    def note_check(self, check_ms: int) -> None:
        """
        Take over when to see whether anybody came for what was made ready, by the server's clock.
        """
        if self.seen_s and check_ms > self.server_ms:
            self._check_s = self.seen_s + (check_ms - self.server_ms) / 1000
            self._tell()

    def check_in_s(self) -> float | None:
        """
        Seconds until that time, None if there is none.
        """
        return None if self._check_s is None else self._check_s - time.monotonic()

    def checked(self) -> None:
        """
        Forget that time.
        """
        self._check_s = None

    def look_now(self) -> None:
        """
        Have everything looked at: something may have been missed.
        """
        self._due_s = self._mine_s = self._told_s = time.monotonic()
        self._tell()

    def mine_in_s(self) -> float | None:
        """
        Seconds until this process should claim by itself what falls due, None if there is no such time.
        """
        return None if self._mine_s is None else self._mine_s - time.monotonic()

    def looked(self) -> None:
        """
        Forget that time: a claim that is under way tells the next.
        """
        self._mine_s = None

    def due_in_s(self) -> float | None:
        """
        Seconds until the next job is due, None if there is none.
        """
        return None if self._due_s is None else self._due_s - time.monotonic()

    def lease_over(self) -> bool:
        """
        Whether a lease has ended as far as we know.
        """
        return self._lease_s is not None and self._lease_s <= time.monotonic()

    def age_s(self) -> float:
        """
        How long ago the last look was.
        """
        return time.monotonic() - self.seen_s

    async def changed(self, timeout_s: float) -> bool:
        """
        Sleep for *timeout_s*; True as soon as something new was noted meanwhile.
        """
        loop = asyncio.get_running_loop()
        future = self._changed = loop.create_future()
        alarm = loop.call_later(max(timeout_s, 0), _wake, future)
        try:
            await future
        finally:
            alarm.cancel()
            self._changed = None
        return bool(future.result())

    def _is_earlier(self, due_s: float | None) -> bool:
        return self._due_s is None or (due_s is not None and due_s < self._due_s)

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(True)


def _wake(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
