"""
The jobs that a worker is running: slots, time limits, and who must stop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from duly.store import Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from duly.context import CurrentJob
    from duly.handlers import Handler
    from duly.job import Lane, Lease

Why = Literal["", "lost", "timeout", "drain"]


class Run:
    """
    One run of one job.
    """

    __slots__ = (
        "deadline_s",
        "handler",
        "interrupt",
        "job",
        "lease",
        "sent_s",
        "slot_held",
        "started_s",
        "stopped",
    )

    def __init__(self, lease: Lease, handler: Handler[..., Any], sent_s: float) -> None:
        self.lease = lease
        self.handler = handler
        self.sent_s = sent_s  #: when its claim was sent, on the monotonic clock
        self.started_s = 0.0
        self.deadline_s = float("inf")
        self.job: CurrentJob | None = None
        self.stopped: Why = ""
        self.slot_held = True
        self.interrupt: Callable[[], None] | None = None  #: stops the handler, as far as that is possible

    def stop(self, why: Why) -> None:
        """
        Make the handler stop; the first reason counts.
        """
        if self.stopped:
            return
        self.stopped = why
        if self.job is not None:
            self.job.cancel()
        if self.interrupt is not None:
            self.interrupt()

    def lateness_ms(self) -> int:
        """
        How long after it was due it started, by the server's clock: an upper bound, to the network's delay.
        """
        late = self.lease.claimed_ms + (self.started_s - self.sent_s) * 1000 - self.lease.floor_ms
        return max(0, round(late))


class Running:
    """
    Slots, in total and by topic, and the runs that hold them or whose outcome is on its way.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.runs: dict[str, Run] = {}
        self.free = concurrency
        self.suspects = 0
        self._of_topic: dict[str, int] = {}
        self._changed: asyncio.Event | None = None

    def wants(self, handlers: Iterable[Handler[..., Any]]) -> list[Want]:
        """
        What can be taken now: never more than there are free slots.
        """
        wants = []
        for handler in handlers:
            free = self.free
            if handler.concurrency is not None:
                free = min(free, handler.concurrency - self._of_topic.get(handler.topic, 0))
            if free > 0:
                wants.append(Want(handler.topic, free, handler.ttr_ms))
        return wants

    def begin(self, run: Run) -> None:
        """
        Take a slot.
        """
        topic = run.lease.key.topic
        self.runs[run.lease.key.member] = run
        self.free -= 1
        self._of_topic[topic] = self._of_topic.get(topic, 0) + 1
        if run.lease.crashes:
            self.suspects += 1

    def free_slot(self, run: Run) -> None:
        """
        Give the slot back: the handler has ended, or is written off.
        """
        if not run.slot_held:
            return
        run.slot_held = False
        self.free += 1
        self._of_topic[run.lease.key.topic] -= 1
        if run.lease.crashes:
            self.suspects -= 1
        self.tell()

    def end(self, run: Run) -> None:
        """
        Forget a run: its outcome is stored, or is no longer ours to store.
        """
        self.free_slot(run)
        if self.runs.get(run.lease.key.member) is run:
            del self.runs[run.lease.key.member]
        self.tell()

    def held(self) -> list[Lease]:
        """
        The leases to extend.  Called from the heart's thread.
        """
        return [run.lease for run in list(self.runs.values()) if run.stopped != "lost"]

    def over_time(self, now_s: float) -> list[Run]:
        """
        The runs past their time to run.
        """
        return [run for run in self.runs.values() if run.deadline_s < now_s and not run.stopped and run.slot_held]

    async def changed(self) -> None:
        """
        Wait until a slot was freed or a run ended.
        """
        if self._changed is None:
            self._changed = asyncio.Event()
        self._changed.clear()
        await self._changed.wait()

    def tell(self) -> None:
        """
        Wake who waits for a change.
        """
        if self._changed is not None:
            self._changed.set()
