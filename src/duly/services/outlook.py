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
STANDS_BY = 2  #: the last rank of the timers that look for all topics
CHECK_STEP_S = 0.01  #: how much later each rank sees whether anybody came for what was made ready
CHECK_S = 0.05  #: after the wake-up, as the scripts tell it
LAST_LOOK_S = 0.06  #: after a due time, processes without a rank look: those with one may be dead
LAST_CHECK_S = 0.03  #: after the time of a check, likewise


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
        self._checks: list[float] = []  #: when to see whether anybody came for what was made ready
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
            mine_s = self._local_s(due_ms) + STAND_BY_S * place
            if self._mine_s is None or mine_s < self._mine_s:
                self._mine_s = mine_s
                self._tell()
        self._told_s = time.monotonic()
        # Before the first look the server's clock is not known: the next one will tell.
        due_s = self._local_s(due_ms) if self.seen_s else self._told_s
        if self._is_earlier(due_s):
            self._due_s = due_s
            self._tell()

    def last_look_in_s(self) -> float | None:
        """
        Seconds until a process without a rank looks for what nobody came for, None if it knows of nothing.

        A look of its own since then has seen all that.
        """
        looks_s = [check_s + LAST_CHECK_S for check_s in self._checks[:1]]
        if self._due_s is not None:
            looks_s.append(max(self._due_s, self.sent_s) + LAST_LOOK_S)
        return min(looks_s) - time.monotonic() if looks_s else None

    def looked_since_check(self) -> bool:
        """
        Whether the last look was asked for after the last time of a check that is over.
        """
        now_s = time.monotonic()
        return not any(self.sent_s < check_s <= now_s for check_s in self._checks)

    def is_overdue(self) -> bool:
        """
        Whether a job has been due for longer than those with a rank take to come for it.
        """
        due_in_s = self.due_in_s()
        return due_in_s is not None and due_in_s <= -LAST_LOOK_S

    def note_own_due(self, due_ms: int | None, sent_s: float) -> None:
        """
        Take over when the next job of this process's own topics falls due, as it was read at *sent_s*.
        """
        due_s = None if due_ms is None else self._local_s(due_ms)
        if sent_s >= self._told_s or self._is_earlier(due_s):
            self._due_s = due_s

    def note_check(self, check_ms: int) -> None:
        """
        Take over when to see whether anybody came for what was made ready, by the server's clock.
        """
        if self.seen_s:
            # Told late, it is time; and it is never told of sooner than that, whatever became of the clock.
            self._checks.append(min(self._local_s(check_ms), time.monotonic() + CHECK_S))
            self._tell()

    def check_in_s(self) -> float | None:
        """
        Seconds until the first such time, None if there is none.
        """
        return self._checks[0] - time.monotonic() if self._checks else None

    def checked(self) -> None:
        """
        Forget the times that are over.

        Those to come stay: what was made ready shortly before them told of no time of its own.
        """
        now_s = time.monotonic()
        self._checks = [check_s for check_s in self._checks if check_s > now_s]

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

    def server_now_ms(self) -> int:
        """
        The server's time as far as the last look tells, 0 before the first one.
        """
        return self.server_ms + round(self.age_s() * 1000) if self.seen_s else 0

    def _local_s(self, server_ms: int) -> float:
        """
        A time of the server on this process's clock; not early, because the answer took its time.
        """
        return self.seen_s + (server_ms - self.server_ms) / 1000

    def _is_earlier(self, due_s: float | None) -> bool:
        return self._due_s is None or (due_s is not None and due_s < self._due_s)

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(True)


def _wake(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
