"""
What the store promises, as a dictionary and a few rules: no streams, no indexes, no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duly.job import JobKey, JobState, Lane

if TYPE_CHECKING:
    from collections.abc import Collection

    from duly.events import Event
    from duly.job import Lease, Order
    from duly.store import Promise
    from duly.testing import TestClock

LEASE_MS, GRACE_MS, TTR_MS = 15_000, 5_000, 20_000
DONE_MS, DEAD_MS, STUB_MS = 100_000, 200_000, 60_000
MAX_CRASHES = 3
ISOLATED_CRASHES = 3  #: the first crash that may be in isolation
SHARE_MS, HALF_MS, ROOM_MS = 20, 100, 60_000


@dataclass
class Row:
    """
    One job.
    """

    order: Order
    state: JobState
    due: int
    revision: int = 0
    attempts: int = 0
    crashes: int = 0
    token: int = 0
    verb: str = ""  #: how the run of that token ended
    started: int = 0
    lease: int = 0
    keep: int = 0
    outcome: bytes = b""
    progress: bytes = b""
    expires: int = 0
    stub: bool = False
    awaited: bool = False
    gone: bool = False  #: there was a result, which was not kept
    half: int = 0  #: of the group that it crashed with last
    timed: bool = False  #: whether the record itself knows the due time

    @property
    def lane(self) -> Lane:
        """
        The stream that it waits in.
        """
        if not self.crashes or self.order.lane is Lane.callback:
            return self.order.lane
        return Lane.suspect if self.crashes == 1 else Lane.isolated

    @property
    def ttr(self) -> int:
        return self.order.ttr_ms or TTR_MS

    def is_late(self, now: int) -> bool:
        return 0 < self.expires < now


@dataclass
class Model:
    """
    The queue.
    """

    clock: TestClock
    rows: dict[JobKey, Row] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)  #: topics with a callback
    limits: dict[str, int] = field(default_factory=dict)
    replies: list[tuple[str, int, JobState, bytes]] = field(default_factory=list)
    aside: dict[str, bytes] = field(default_factory=dict)  #: damaged records, by member
    waiting: dict[tuple[str, str], int] = field(default_factory=dict)  #: topic and worker, until when at most
    room: tuple[str, int] = ("", 0)  #: the worker that was asked to make room, and for how long it has that
    last_number: int = 0  #: the highest revision or token given out so far

    @property
    def now(self) -> int:
        return self.clock.now_ms

    def in_state(self, state: JobState, topic: str | None = None) -> list[Row]:
        return [
            row for row in self.rows.values() if row.state is state and topic in (None, row.order.key.topic)
        ]

    def grow(self, *numbers: int) -> None:
        """
        Take note of revisions or tokens that one call gave out.
        """
        assert len(numbers) == len(set(numbers))
        assert all(number > self.last_number for number in numbers), "revisions and tokens are never reused"
        self.last_number = max(numbers, default=self.last_number)

    # -- verbs --------------------------------------------------------------------------------------------

    def enqueue(self, order: Order) -> tuple[str, Row | None]:
        old = self.rows.get(order.key)
        if old and order.on_conflict != "replace":
            return ("exists" if order.on_conflict == "raise" else "kept"), old
        due = self.now + (order.delay_ms or 0) if order.due_ms is None else max(order.due_ms, self.now)
        if old and not old.stub and old.due == due and _terms(old.order, old.expires) == _terms(order):
            return "kept", old
        topic = order.key.topic
        waiting = len(self.in_state(JobState.scheduled, topic)) + len(self.in_state(JobState.ready, topic))
        if (not old or old.state >= JobState.running) and waiting >= self.limits.get(topic, 1_000_000):
            return "full", None
        state = JobState.ready if due == self.now else JobState.scheduled
        awaited = order.awaited or (old is not None and old.awaited)
        timed = old is not None or state is JobState.ready or _asks(order) or order.awaited
        row = Row(order, state, due, expires=order.expires_ms, timed=timed, awaited=awaited)
        self.rows[order.key] = row
        return ("replaced" if old else "created"), row

    def due(self, topics: Collection[str]) -> list[Row]:
        waiting = self.in_state(JobState.scheduled)
        return [row for row in waiting if row.due <= self.now and row.order.key.topic in topics]

    def promote(self, topics: Collection[str]) -> int:
        moved = 0
        for row in self.due(topics):
            if row.is_late(self.now):
                self.end(row, JobState.cancelled, b'{"type":"expired"}')
            else:
                self.make_ready(row)
                moved += 1
        return moved

    def make_ready(self, row: Row) -> None:
        assert JobState.scheduled is row.state
        assert row.due <= self.now
        assert not row.is_late(self.now)
        row.state, row.timed = JobState.ready, True

    def others_wait(self, topic: str, worker: str) -> bool:
        """
        Whether another worker may wait for a topic, so that something is left to it for a moment.
        """
        return any(
            until > self.now
            for (waits_for, other), until in self.waiting.items()
            if (waits_for, other) != (topic, worker) and waits_for == topic
        )

    def is_left_to_others(self, row: Row, worker: str) -> bool:
        """
        Whether a worker may leave a job to others, by their shares or by halves.
        """
        least_ms = HALF_MS if row.lane is Lane.suspect else SHARE_MS
        return row.due > self.now - least_ms and self.others_wait(row.order.key.topic, worker)

    def is_for(self, row: Row, *, callbacks: bool) -> bool:
        """
        Whether a job is a deliverer's, or an ordinary worker's.
        """
        return callbacks == (row.order.lane is Lane.callback or row.order.key.topic in self.called)

    def claimed(self, lease: Lease, *, callbacks: bool) -> None:
        row = self.rows[lease.key]
        assert self.is_for(row, callbacks=callbacks)
        assert row.lane is lease.lane
        assert JobState.ready is row.state
        assert not row.is_late(self.now)
        assert lease.key.topic not in self.paused
        row.state, row.token, row.verb, row.started = JobState.running, lease.token, "", self.now
        row.lease = self.now + min(LEASE_MS, row.ttr + GRACE_MS)
        assert (row.revision, row.attempts + 1, row.crashes, row.order.payload, row.due) == (
            lease.revision,
            lease.attempt,
            lease.crashes,
            lease.payload,
            lease.due_ms,
        )
        assert row.lease == lease.expires_ms
        self.grow(lease.token)

    def held(self, lease: Lease, verb: str) -> str:
        """
        The answer to a verb with a token: 'ok' also where the same was said before.
        """
        row = self.rows.get(lease.key)
        if row is None:
            return "gone"
        if row.token != lease.token:
            return "lost"
        if row.state is JobState.running:
            return "run"
        return "ok" if row.verb == verb else "lost"

    def ack(self, row: Row, result: bytes) -> None:
        row.attempts += 1
        self.end(row, JobState.succeeded, result, verb="ack")

    def bury(self, row: Row, error: bytes) -> None:
        row.attempts += 1
        self.end(row, JobState.dead, error, verb="bury")

    def retry(self, row: Row, delay_ms: int, error: bytes, *, counted: bool) -> None:
        row.attempts += counted
        if counted:
            row.crashes = 0
        row.verb, row.progress = "retry", b""
        row.outcome = error or row.outcome
        row.state, row.due = JobState.scheduled, self.now + delay_ms

    def release(self, row: Row) -> None:
        row.state, row.verb, row.progress = JobState.ready, "release", b""

    def extend(self, row: Row) -> None:
        row.lease = min(self.now + LEASE_MS, row.started + row.ttr + GRACE_MS)

    def recover(self, *, counted: bool) -> tuple[int, int]:
        back = buried = 0
        for row in self.in_state(JobState.running):
            if row.lease > self.now:
                continue
            row.verb, row.progress = "recover", b""
            row.crashes += counted
            if counted and row.crashes >= max(row.order.max_crashes or MAX_CRASHES, ISOLATED_CRASHES):
                text = f"the worker was lost {row.crashes} times while it ran this job"
                self.end(
                    row, JobState.dead, b'{"type":"crashed","message":"%s"}' % text.encode(), verb="recover"
                )
                buried += 1
            else:
                row.state, row.due = JobState.ready, self.now if counted else row.due
                back += 1
        return back, buried

    def cancel(self, key: JobKey) -> JobState | None:
        row = self.rows.get(key)
        if row and not row.state.ended:
            self.end(row, JobState.cancelled, b'{"type":"cancelled"}', verb=row.verb)
        return row and row.state

    def reschedule(self, key: JobKey, due: int, revision: int | None) -> str:
        row = self.rows.get(key)
        if row is None:
            return "gone"
        if row.state > JobState.ready or revision not in (None, row.revision):
            return "conflict"
        row.state, row.due, row.timed = JobState.scheduled, max(due, self.now), True
        return "ok"

    def hold(self, key: JobKey, least_ms: int, revision: int | None) -> str:
        row = self.rows.get(key)
        if row is None:
            return "gone"
        if row.state > JobState.ready or revision not in (None, row.revision):
            return "conflict"
        held = self.now + least_ms
        if row.expires:
            held = min(held, row.expires - 1000)
        self.wait_until(row, max(row.due, held))
        return "ok"

    def wait_until(self, row: Row, due: int) -> None:
        if row.due != due:
            row.state, row.due, row.timed = JobState.scheduled, due, True

    def requeue(self, key: JobKey) -> str:
        row = self.rows.get(key)
        if row is None or row.stub:
            return "gone"
        if not row.state.ended:
            return "conflict"
        again = Row(row.order, JobState.ready, self.now, timed=True, awaited=row.awaited)
        self.rows[key] = again
        return "ok"

    def prune(self) -> int:
        old = [key for key, row in self.rows.items() if row.state.ended and row.keep <= self.now]
        for key in old:
            del self.rows[key]
        return len(old)

    def hydrate(self, promise: Promise) -> str:
        order = promise.order
        old = self.rows.get(order.key)
        if old and old.revision >= promise.revision:
            return "kept"
        word = "replaced" if old else "created"
        if not promise.cancelled:
            state = JobState.ready if order.due_ms <= self.now else JobState.scheduled
            counts = promise.attempts, promise.crashes
            row = Row(order, state, order.due_ms, promise.revision, *counts, expires=order.expires_ms)
            row.timed = old is not None or state is JobState.ready or any(counts) or _asks(order)
            row.awaited = old is not None and old.awaited
            self.rows[order.key] = row
            return word
        if not old:
            old = self.rows[order.key] = Row(order, JobState.scheduled, order.due_ms, stub=True)
            old.attempts, old.crashes = promise.attempts, promise.crashes
        old.revision = promise.revision
        if not old.state.ended:
            self.end(old, JobState.cancelled, b'{"type":"cancelled"}', verb=old.verb)
        return word

    def forget(self, key: JobKey, revision: int) -> bool:
        row = self.rows.get(key)
        if row is None or row.revision > revision:
            return False
        del self.rows[key]
        return True

    def quarantine(self, row: Row, left: bytes) -> None:
        del self.rows[row.order.key]
        self.aside[row.order.key.member] = left

    def end(self, row: Row, state: JobState, outcome: bytes, *, verb: str = "") -> None:
        """
        Reach a state that is final for this revision.
        """
        row.state, row.outcome, row.progress, row.timed = state, outcome, b"", True
        if _asks(row.order):
            self.replies.append((row.order.key.member, row.revision, state, outcome))
        row.verb = verb or row.verb
        keep_ms = DEAD_MS if state is JobState.dead else DONE_MS
        if state is not JobState.dead and row.order.retain_s is not None:
            keep_ms = row.order.retain_s * 1000
        if keep_ms == 0:
            row.stub = True
            if not row.awaited:
                row.gone = state is JobState.succeeded and outcome != b""
                row.outcome = b""
        row.keep = self.now + max(keep_ms, STUB_MS)


def _asks(order: Order) -> bool:
    return order.envelope.startswith(b'{"reply_to":')


def _terms(order: Order, expires: int | None = None) -> tuple[object, ...]:
    """
    What must be equal for a replacement to count as the same.
    """
    return (
        order.payload,
        order.envelope,
        order.lane,
        order.expires_ms if expires is None else expires,
        order.ttr_ms,
        order.retain_s,
        order.max_crashes,
    )


@dataclass
class Told:
    """
    The states of jobs as the events tell them: a reader of nothing else must come to the same.
    """

    states: dict[JobKey, tuple[JobState, int]] = field(default_factory=dict)
    counter: int = 0

    def hear(self, event: Event) -> None:
        assert event.counter in (self.counter, self.counter + 1), "events are dense"
        self.counter = event.counter
        key = JobKey(event.topic, event.id)
        if event.verb in ("paused", "resumed", "mended"):
            return
        if event.verb == "quarantined":
            del self.states[key]
            return
        state, revision = self.states.get(key, (None, 0))
        if event.verb == "rescheduled" and event.reason:
            # It was held, or let go: what it is has not changed.
            assert (revision, True) == (event.revision, state <= JobState.ready)
        elif event.verb in ("enqueued", "replaced", "requeued", "rescheduled", "hydrated"):
            assert event.revision > revision
            assert event.verb == "hydrated" or (event.verb == "enqueued") == (state is None)
        elif event.verb == "cancelled" and (state is None or event.revision > revision):
            # By a row that was cancelled, which has a revision of its own.
            assert state is None or not state.ended
        else:
            assert revision == event.revision
            gone = event.verb in ("pruned", "forgotten")
            assert gone or not state.ended, f"{key} had ended and was {event.verb}"
        match event.verb:
            case "pruned" | "forgotten":
                del self.states[key]
                return
            case "hydrated":
                state = event.state
            case "enqueued" | "replaced":
                state = JobState.scheduled if event.due_ms > event.at_ms else JobState.ready
            case verb:
                state = _AFTER[verb]
        self.states[key] = (state, event.revision)


_AFTER = {
    "promoted": JobState.ready,
    "claimed": JobState.running,
    "acked": JobState.succeeded,
    "retried": JobState.scheduled,
    "buried": JobState.dead,
    "released": JobState.ready,
    "recovered": JobState.ready,
    "cancelled": JobState.cancelled,
    "rescheduled": JobState.scheduled,
    "requeued": JobState.ready,
}
LANES = (Lane.normal, Lane.high, Lane.low, Lane.callback)
