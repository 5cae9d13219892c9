"""
A job as a row: what was promised, with the number that Redis takes over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from duly.codec import decode_envelope
from duly.job import PER_MS, Job, JobKey, JobState, Lane, Order

if TYPE_CHECKING:
    from duly.job import Priority
    from duly.record.clock import Moment


ENDED = frozenset(state.value for state in JobState if state.ended)


class JobRow(NamedTuple):
    """
    A row of `duly_jobs`; the fields are its columns, in their order.
    """

    namespace: str
    topic: str
    id: str
    revision: int
    request: bytes
    state: int
    due_ms: int
    relay_ms: int | None
    hydrated: int
    generation: int
    lane: int
    ttr_ms: int
    expires_ms: int
    retain_s: int | None
    max_crashes: int
    attempts: int
    crashes: int
    payload: bytes
    envelope: bytes
    outcome: bytes | None
    accepted_ms: int
    changed_ms: int
    started_ms: int | None
    ended_ms: int | None
    lateness_ms: int | None

    @property
    def key(self) -> JobKey:
        """
        Which job.
        """
        return JobKey(self.topic, self.id)

    @property
    def ended(self) -> bool:
        """
        Whether it says that nothing more happens.
        """
        return self.state in ENDED


#: Subtracted from a due time: at once, and among such rows in the order of their due times.
AT_ONCE_MS = 10**15


def relay_at(old: JobRow, due_ms: int, now: Moment) -> int:
    """
    When the relay has to bring a new revision: at once, as Redis may have the old one and would run it.

    Near its due time only where the old one waits beyond the horizon, so that nobody has brought it there.
    """
    cold = not old.hydrated and old.relay_ms is not None and old.relay_ms > now.far_ms
    return due_ms if cold else due_ms - AT_ONCE_MS


def next_revision(now: Moment, last: int = 0) -> int:
    """
    The number of a change: the later of its last one plus one and microseconds since 1970, as Redis counts.
    """
    return max(last + 1, now.number, now.floor_ms * PER_MS)


def due_of(order: Order, now: Moment) -> int:
    """
    When an order is due that is accepted now, as enqueue.lua would say.
    """
    if order.due_ms is not None:
        # What is past is due now, so that lateness counts from when it was accepted.
        return max(order.due_ms, now.floor_ms)
    return now.ceil_ms + order.delay_ms if order.delay_ms else now.floor_ms


def row_of(namespace: str, order: Order, request: bytes, now: Moment) -> JobRow:
    """
    The row of an order that nobody has promised yet.
    """
    due_ms = due_of(order, now)
    return JobRow(
        namespace=namespace,
        topic=order.key.topic,
        id=order.key.id,
        revision=next_revision(now),
        request=request,
        state=JobState.scheduled.value,
        due_ms=due_ms,
        relay_ms=due_ms,
        hydrated=0,
        generation=0,
        lane=order.lane.value,
        ttr_ms=order.ttr_ms,
        expires_ms=order.expires_ms,
        retain_s=order.retain_s,
        max_crashes=order.max_crashes,
        attempts=0,
        crashes=0,
        payload=order.payload,
        envelope=order.envelope,
        outcome=None,
        accepted_ms=now.floor_ms,
        changed_ms=now.floor_ms,
        started_ms=None,
        ended_ms=None,
        lateness_ms=None,
    )


def order_of(row: JobRow) -> Order:
    """
    The order that a row keeps, due when the row says.
    """
    return Order(
        row.key,
        bytes(row.payload),
        due_ms=row.due_ms,
        lane=Lane(row.lane),
        expires_ms=row.expires_ms,
        ttr_ms=row.ttr_ms,
        retain_s=row.retain_s,
        max_crashes=row.max_crashes,
        envelope=bytes(row.envelope),
        # Known by the revision, as long as that is its first.
        created_ms=0 if row.accepted_ms == row.revision // PER_MS else row.accepted_ms,
    )


def same(old: JobRow, new: JobRow) -> bool:
    """
    Whether two rows promise the same: then a replacement changes nothing.
    """
    return _promised(old) == _promised(new)


def _promised(row: JobRow) -> tuple[object, ...]:
    return (
        row.due_ms,
        row.lane,
        row.ttr_ms,
        row.expires_ms,
        row.retain_s,
        row.max_crashes,
        bytes(row.payload),
        bytes(row.envelope),
    )


def state_of(row: JobRow, now: Moment) -> JobState:
    """
    The state that a row can tell of: what runs is known to Redis alone.
    """
    if row.ended:
        return JobState(row.state)
    return JobState.ready if row.due_ms <= now.floor_ms else JobState.scheduled


def job_of(row: JobRow, now: Moment) -> Job:
    """
    A job as its row tells of it.
    """
    return Job(
        topic=row.topic,
        id=row.id,
        state=state_of(row, now),
        revision=row.revision,
        priority=cast("Priority", "normal" if row.lane == Lane.callback else Lane(row.lane).name),
        attempts=row.attempts,
        crashes=row.crashes,
        payload=bytes(row.payload),
        due_ms=row.due_ms,
        scheduled_ms=row.due_ms,
        created_ms=row.accepted_ms,
        updated_ms=max(row.revision // PER_MS, row.started_ms or 0, row.ended_ms or 0),
        started_ms=row.started_ms or 0,
        ended_ms=row.ended_ms or 0,
        lateness_ms=row.lateness_ms,
        outcome=bytes(row.outcome or b""),
        ttr_ms=row.ttr_ms,
        expires_ms=row.expires_ms,
        retain_s=row.retain_s,
        envelope=decode_envelope(bytes(row.envelope)),
    )
