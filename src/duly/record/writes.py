"""
What changes rows: each verb as a plain function of a connection, in a transaction of its caller's.

The rules are those of the scripts of the same names.  A call is told by its `request`: one
whose commit was not answered is sent again, and finds what it had done.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from duly.errors import Conflict, DulyError, JobExists, JobNotFound
from duly.job import JobKey, JobState, Placed
from duly.record.rows import JobRow, due_of, next_revision, relay_at, row_of, same, state_of
from duly.record.stored import find, insert_rows, lock_rows, store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from duly.job import Order
    from duly.record.clock import Moment

#: What a new revision of a job that has ended, or is replaced, forgets of the one before.
FORGOTTEN: dict[str, Any] = {
    "state": JobState.scheduled.value,
    "attempts": 0,
    "crashes": 0,
    "outcome": None,
    "started_ms": None,
    "ended_ms": None,
    "lateness_ms": None,
}


class Wanted(NamedTuple):
    """
    An order, and the bytes that tell this call of it from another one.
    """

    order: Order
    request: bytes


class Written(NamedTuple):
    """
    What became of one job: the answer for its caller, and the row if Redis has to hear of it.
    """

    answer: Placed | DulyError
    row: JobRow | None = None
    stands: JobRow | None = None  #: what was met and left as it is: Redis may know more of it


class Cancelled(NamedTuple):
    """
    The state that a row is in now, None if there is none; and the row if Redis has to hear of it.
    """

    state: JobState | None
    row: JobRow | None = None


class Seen(NamedTuple):
    """
    What Redis says of a job: it knows earlier than the row when one runs or has ended.
    """

    revision: int
    state: JobState


def accept(connection: Connection, namespace: str, wanted: Sequence[Wanted], now: Moment) -> list[Written]:
    """
    Promise jobs, all with different keys: each new, kept as it was, or in place of an older one with its id.
    """
    fresh = [row_of(namespace, order, request, now) for order, request in wanted]
    # In one order everywhere, so that two transactions with the same keys never wait for each other.
    in_order = sorted(fresh, key=lambda row: (row.topic, row.id))
    standing = insert_rows(connection, namespace, in_order)
    if not standing:
        return [_made(row, now) for row in fresh]
    # Only what is to be replaced is locked: whoever keeps a job, or repeats a call, waits for nobody and
    # keeps nobody waiting.
    replaced = {
        order.key
        for order, request in wanted
        if order.on_conflict == "replace"
        and (old := standing.get(order.key)) is not None
        and old.request != request
    }
    while replaced:
        locked = lock_rows(connection, namespace, replaced)
        replaced -= locked.keys()
        standing = {key: row for key, row in standing.items() if key not in replaced} | locked
        # Retention took these away meanwhile.
        gone = [row for row in in_order if row.key in replaced]
        replaced &= insert_rows(connection, namespace, gone).keys()
    return _settle(connection, wanted, fresh, standing, now)


def _made(row: JobRow, now: Moment) -> Written:
    return Written(Placed(row.key, "created", row.revision, row.due_ms, state_of(row, now)), row)


def _settle(
    connection: Connection,
    wanted: Sequence[Wanted],
    fresh: Sequence[JobRow],
    standing: Mapping[JobKey, JobRow],
    now: Moment,
) -> list[Written]:
    answers: list[Written] = []
    replaced: list[JobRow] = []
    for (order, request), row in zip(wanted, fresh, strict=True):
        old = standing.get(row.key)
        if old is None:
            answers.append(_made(row, now))
        elif old.request == request:
            word: Literal["created", "replaced"] = (
                "created" if old.changed_ms == old.accepted_ms else "replaced"
            )
            placed = Placed(row.key, word, old.revision, old.due_ms, state_of(old, now))
            answers.append(Written(placed, old if old.relay_ms is not None else None))
        elif order.on_conflict == "raise":
            answers.append(Written(exists(row.key, state_of(old, now)), stands=old))
        elif order.on_conflict == "keep" or same(old, row) or _came_behind(old, order):
            placed = Placed(row.key, "kept", old.revision, old.due_ms, state_of(old, now))
            answers.append(Written(placed, stands=old))
        else:
            new = row._replace(
                revision=next_revision(now, old.revision),
                relay_ms=relay_at(old, row.due_ms, now),
                hydrated=old.hydrated,
                generation=old.generation,
                accepted_ms=old.accepted_ms,
                # Never equal: by that, a repeated call tells what it had done.
                changed_ms=max(now.floor_ms, old.accepted_ms + 1),
            )
            replaced.append(new)
            placed = Placed(new.key, "replaced", new.revision, new.due_ms, state_of(new, now))
            answers.append(Written(placed, new))
    store(connection, replaced)
    return answers


def cancel(
    connection: Connection,
    namespace: str,
    keys: Sequence[JobKey],
    request: bytes,
    now: Moment,
    *,
    reason: str = "cancelled",
    revision: int | None = None,
    seen: Mapping[JobKey, Seen] = MappingProxyType({}),
) -> list[Cancelled]:
    """
    End jobs that have not ended, all with different keys; with a *revision* only that one.

    Raises:
        Conflict: Another revision stands.
    """
    standing = find(connection, namespace, keys, lock=True)
    answers: list[Cancelled] = []
    changed: list[JobRow] = []
    for key in keys:
        old = standing.get(key)
        if old is None:
            answers.append(Cancelled(None))
        elif revision not in (None, old.revision) and old.request != request:
            raise Conflict(f"another revision of {key} stands: it is not cancelled")
        elif old.ended:
            again = old.request == request and old.relay_ms is not None
            answers.append(Cancelled(JobState(old.state), old if again else None))
        elif (state := _seen(old, seen)) in (JobState.succeeded, JobState.dead):
            answers.append(Cancelled(state))  # its outcome is on the way to the row
        else:
            row = old._replace(
                revision=next_revision(now, old.revision),
                request=request,
                state=JobState.cancelled.value,
                relay_ms=now.floor_ms,
                outcome=f'{{"type":"{reason}"}}'.encode(),
                ended_ms=now.floor_ms,
                changed_ms=now.floor_ms,
            )
            if state is JobState.cancelled:
                # Redis has ended it, at this revision; it may forget that before the row hears of it.
                row = row._replace(revision=old.revision, hydrated=old.revision, relay_ms=None)
            changed.append(row)
            answers.append(Cancelled(JobState.cancelled, row))
    store(connection, changed)
    return answers


def reschedule(
    connection: Connection,
    namespace: str,
    order: Order,
    request: bytes,
    now: Moment,
    *,
    revision: int | None = None,
    seen: Mapping[JobKey, Seen] = MappingProxyType({}),
) -> Written:
    """
    Give a job that has not started, as far as is known, the due time of *order*, whose key names it.
    """
    key = order.key
    old = find(connection, namespace, [key], lock=True).get(key)
    if old is None:
        return Written(JobNotFound(f"there is no job {key}"))
    if old.request == request:
        placed = Placed(key, "rescheduled", old.revision, old.due_ms, JobState.scheduled)
        return Written(placed, old if old.relay_ms is not None else None)
    if old.ended or (revision is not None and old.revision != revision):
        return Written(_conflict(old, state_of(old, now), "rescheduled"))
    state = _seen(old, seen)
    if state is not None and state > JobState.ready:
        return Written(_conflict(old, state, "rescheduled"))
    due_ms = due_of(order, now)
    row = old._replace(
        revision=next_revision(now, old.revision),
        request=request,
        due_ms=due_ms,
        relay_ms=relay_at(old, due_ms, now),
        changed_ms=now.floor_ms,
    )
    store(connection, [row])
    return Written(Placed(key, "rescheduled", row.revision, due_ms, JobState.scheduled), row)


def requeue(
    connection: Connection,
    namespace: str,
    keys: Sequence[JobKey],
    request: bytes,
    now: Moment,
    *,
    revision: int | None = None,
    seen: Mapping[JobKey, Seen] = MappingProxyType({}),
) -> list[Written]:
    """
    Run ended jobs again, all with different keys, also those of which only Redis knows that they have ended.
    """
    standing = find(connection, namespace, keys, lock=True)
    answers: list[Written] = []
    changed: list[JobRow] = []
    for key in keys:
        old = standing.get(key)
        state = None if old is None else _seen(old, seen) or state_of(old, now)
        if old is None or state is None:
            answers.append(Written(JobNotFound(f"there is no job {key}")))
        elif old.request == request:
            placed = Placed(key, "requeued", old.revision, old.due_ms, JobState.ready)
            answers.append(Written(placed, old if old.relay_ms is not None else None))
        elif revision not in (None, old.revision) or not state.ended:
            answers.append(Written(_conflict(old, state, "requeued")))
        else:
            row = old._replace(
                revision=next_revision(now, old.revision),
                request=request,
                due_ms=now.floor_ms,
                relay_ms=now.floor_ms,
                expires_ms=0,  # who asks for it again does not mean the old deadline
                changed_ms=now.floor_ms,
                **FORGOTTEN,
            )
            changed.append(row)
            answers.append(Written(Placed(key, "requeued", row.revision, row.due_ms, JobState.ready), row))
    store(connection, changed)
    return answers


def exists(key: JobKey, state: JobState) -> JobExists:
    """
    What to say of an id that is taken.
    """
    return JobExists(f"{key} exists already, {state.name}")


def _came_behind(row: JobRow, order: Order) -> bool:
    """
    Return whether a row was changed by others since a repeated call was made the first time.
    """
    return order.once is not None and row.revision > order.once.seen


def _seen(row: JobRow, seen: Mapping[JobKey, Seen]) -> JobState | None:
    """
    The state in Redis of what an open row stands for; None where it is not there, or is another revision.
    """
    found = seen.get(row.key)
    return found.state if found is not None and found.revision == row.revision and not row.ended else None


def _conflict(row: JobRow, state: JobState, word: str) -> Conflict:
    return Conflict(f"{row.key} is {state.name} at revision {row.revision}: it cannot be {word}")
