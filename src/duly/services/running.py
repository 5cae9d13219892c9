"""
The jobs that a worker is running: slots, time limits, and who must stop.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from duly.job import JobState, Lane
from duly.outcome import Ack, Buried, RetryLater
from duly.record.runs import EndedRun
from duly.sentry import run_context
from duly.store import Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from duly.context import Committed, CurrentJob
    from duly.handlers import Handler
    from duly.job import Lease
    from duly.metrics import Metrics
    from duly.outcome import Outcome
    from duly.record.outcomes import Outcomes
    from duly.record.transactionpools import TransactionPools

Why = Literal["", "lost", "timeout", "drain"]

APART = 8  #: processes at a time for isolated jobs of functions that have none else: each imports the program
MUCH_MORE = 4  #: a part of the free slots: so many more are news to those who share jobs out
_STORED = frozenset({"acked", "retried", "buried", "released"})


class Run:
    """
    One run of one job.
    """

    __slots__ = (
        "apart",
        "context",
        "deadline_s",
        "freed_s",
        "handler",
        "interrupt",
        "job",
        "lease",
        "member",
        "outcome",
        "sent_s",
        "slot_held",
        "start_ms",
        "started_s",
        "stopped",
        "task",
        "verb",
    )

    def __init__(self, lease: Lease, handler: Handler[..., Any], sent_s: float) -> None:
        self.lease = lease
        self.member = lease.key.member
        self.handler = handler
        #: whether it has to run isolated, and does so in a process of its own
        self.apart = bool(lease.crashes) and lease.lane is Lane.isolated and handler.isolates
        self.sent_s = sent_s  #: when its claim was sent, on the monotonic clock
        self.started_s = 0.0
        self.start_ms = 0  #: how long after its claim the time to run counts, if that is not at once
        self.deadline_s = float("inf")
        self.job: CurrentJob | None = None
        self.freed_s = 0.0  #: when it gave its slot back
        self.outcome: Outcome | None = None  #: what was decided; None gives it back
        self.verb = ""  #: what was stored of it: acked, retried, buried, released; or fenced
        self.stopped: Why = ""
        self.slot_held = True
        self.task: asyncio.Task[None]  # set as soon as it is to begin
        self.context = run_context(lease)  #: in which it runs, and in which others log about it
        self.interrupt: Callable[[], Any] | None = None  #: stops the handler, as far as that is possible

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

    def allow_start(self, seconds: float) -> None:
        """
        Let the time to run count from so many seconds from now, for whoever extends the lease.
        """
        self.start_ms = round((time.monotonic() - self.sent_s + seconds) * 1000)

    @property
    def committed(self) -> Committed | None:
        """
        The ending of the job, if its handler has committed it to the record.
        """
        return None if self.job is None else self.job.committed

    def held(self) -> Lease:
        """
        The lease as it is to be extended: the server counts the time to run from the claim.
        """
        if not self.start_ms:
            return self.lease
        return msgspec.structs.replace(self.lease, ttr_ms=self.lease.ttr_ms + self.start_ms)

    def lateness_ms(self) -> int:
        """
        How long after it was due it started, by the server's clock: an upper bound, to the network's delay.
        """
        lease = self.lease
        late = lease.claimed_ms + (self.started_s - self.sent_s) * 1000 - lease.floor_ms
        return round(late) if late > 0 else 0

    def late_s(self) -> float:
        """
        The same in seconds, and not rounded.
        """
        late = (self.lease.claimed_ms - self.lease.floor_ms) / 1000 + self.started_s - self.sent_s
        return max(0.0, late)


class Running:
    """
    Slots, in total and by topic, and the runs that hold them or whose outcome is on its way.
    """

    def __init__(self, concurrency: int, worker: str = "") -> None:
        self.concurrency = concurrency
        self.worker = worker  #: whose they are
        self.runs: dict[str, Run] = {}
        self.free = concurrency
        self._halves = [0, 0]  #: suspects of each half of the groups that crashed together
        self._isolated = 0  #: runs beside which nothing else may run
        self._apart = 0  #: runs in processes of their own, of functions that have none else
        self._of_topic: dict[str, int] = {}
        self.meter: Metrics | None = None
        self.outcomes: Outcomes | None = None  #: where the record is told, if there is one
        self.transactions: TransactionPools | None = None  #: for handlers, if there is a record
        self._told: list[asyncio.Future[None]] = []  #: who waits for any change
        self._room: asyncio.Future[None] | None = None
        self._room_from = 0  #: so many free slots are room, too

    def __len__(self) -> int:
        return len(self.runs)

    def report_to(
        self,
        meter: Metrics | None,
        outcomes: Outcomes | None,
        transactions: TransactionPools | None = None,
    ) -> None:
        """
        Have runs counted by *meter*, and told or committed to the record, where there are such.
        """
        self.meter, self.outcomes, self.transactions = meter, outcomes, transactions
        if outcomes is not None:
            outcomes.room = self.tell_all

    def wants(self, handlers: Iterable[Handler[..., Any]]) -> list[Want]:
        """
        What can be taken now: never more than there are free slots.
        """
        wants: list[Want] = []
        if self._isolated:
            return wants
        for handler in handlers:
            free = self.free
            if handler.concurrency is not None:
                free = min(free, handler.concurrency - self._of_topic.get(handler.topic, 0))
            if free > 0:
                wants.append(Want(handler.topic, free, handler.ttr_ms, self._processes(handler)))
        return wants

    def _processes(self, handler: Handler[..., Any]) -> int | None:
        """
        How many more jobs that have to run isolated may have a process of their own, None if none ever may.
        """
        if not handler.isolates:
            return None
        return self.free if handler.run_in == "process" else max(0, APART - self._apart)

    @property
    def half(self) -> str:
        """
        The half of groups that crashed together of which suspects run here, "" if none do.
        """
        if not any(self._halves):
            return ""
        return "0" if self._halves[0] >= self._halves[1] else "1"

    def _count_suspect(self, run: Run, change: int) -> None:
        match run.lease.lane:
            case Lane.suspect:
                self._halves[run.lease.half] += change
            case Lane.isolated if not run.apart:
                self._isolated += change
            case Lane.isolated if run.handler.run_in != "process":
                self._apart += change

    def begin(self, run: Run) -> None:
        """
        Take a slot.
        """
        topic = run.lease.key.topic
        member = run.member
        if member in self.runs:
            # Claimed anew while an earlier run of it goes on here: that one has lost its lease, told or not.
            self.runs[member].stop("lost")
        self.runs[member] = run
        self.free -= 1
        self._of_topic[topic] = self._of_topic.get(topic, 0) + 1
        if run.lease.crashes:
            self._count_suspect(run, 1)
        if self.meter is not None:
            self.meter.claimed(run)

    def free_slot(self, run: Run) -> None:
        """
        Give the slot back: the handler has ended, or is written off.
        """
        if not run.slot_held:
            return
        run.slot_held = False
        lease = run.lease
        run.freed_s = time.monotonic()
        self.free += 1
        self._of_topic[lease.key.topic] -= 1
        if lease.crashes:
            self._count_suspect(run, -1)
        if self._room is not None and (
            lease.crashes or run.handler.concurrency is not None or self.free == self._room_from
        ):
            self._make_room()
        if self._told:
            self.tell()

    def end(self, run: Run) -> None:
        """
        Forget a run: its outcome is stored, or is no longer ours to store.
        """
        if run.slot_held:
            self.free_slot(run)
        if self.meter is not None:
            self.meter.ended(run)
        if self.outcomes is not None and run.verb in _STORED and run.committed is None:
            self.outcomes.put(self.ended_run(run, run.verb, run.outcome))
        if self.runs.get(run.member) is run:
            del self.runs[run.member]
        if self._told:
            self.tell()

    def ended_run(self, run: Run, verb: str, ending: Outcome | None) -> EndedRun:
        """
        Describe to the record a run that ends now, or whose outcome was just stored.
        """
        lease = run.lease
        counted, state, outcome = 1, JobState.scheduled, b""
        match ending:
            case Ack(result):
                state, outcome = JobState.succeeded, result
            case Buried(error):
                state, outcome = JobState.dead, error
            case RetryLater(error=error, counted=is_counted):
                outcome, counted = error, int(is_counted)
            case None:
                state, counted = JobState.ready, 0
        return EndedRun(
            lease.key,
            lease.revision,
            lease.token,
            verb,
            state,
            lease.attempt,
            lease.attempt - 1 + counted,
            lease.crashes,
            self.worker,
            lease.claimed_ms,
            # By the server's clock, rounded up: the time of the claim is rounded down.
            lease.claimed_ms + math.ceil((time.monotonic() - run.sent_s) * 1000),
            run.lateness_ms(),
            outcome,
        )

    def held(self) -> list[Lease]:
        """
        The leases to extend.  Called from the heart's thread.
        """
        return [run.held() for run in list(self.runs.values()) if run.stopped != "lost"]

    def over_time(self, now_s: float) -> list[Run]:
        """
        The runs past their time to run.
        """
        return [
            run for run in self.runs.values() if run.deadline_s < now_s and not run.stopped and run.slot_held
        ]

    def changed(self) -> asyncio.Future[None]:
        """
        A future that is done as soon as a slot is freed or a run ends, from this call on.
        """
        future = asyncio.get_running_loop().create_future()
        # Those that were given up are not waiting any more.
        self._told = [waiting for waiting in self._told if not waiting.done()]
        self._told.append(future)
        return future

    def room(self) -> asyncio.Future[None]:
        """
        A future that is done as soon as something can be claimed that could not be before.

        There are slots free: what may be missing is one of a topic with a limit of its own, or a suspect's.
        Or there is far more room than was told when this worker began to wait: what comes next is shared out
        by what each has told.
        """
        self._room_from = self.free + max(2, self.free // MUCH_MORE)
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def tell(self) -> None:
        """
        Wake who waits for a change.
        """
        told, self._told = self._told, []
        for future in told:
            if not future.done():
                future.set_result(None)

    def tell_all(self) -> None:
        """
        Wake whoever waits, for whatever.
        """
        self.tell()
        self._make_room()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None
