"""
The words that scripts answer with, as values and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from duly.errors import (
    Conflict,
    DulyError,
    JobExists,
    JobNotFound,
    LeaseLost,
    OutcomeUnknown,
    QueueFull,
)
from duly.job import JobKey, JobState, Lease, Placed
from duly.store.values import Held, Hydrated
from duly.wire import ReplyError

if TYPE_CHECKING:
    from duly.job import Accepted
    from duly.store.values import Upto

Answer = TypeVar("Answer")


def ms_of(text: bytes) -> int | None:
    """
    A time in an answer, None where there is none.
    """
    return int(float(text)) if text else None


def check_held(lease: Lease, word: bytes) -> None:
    """
    Let the word for a lease that was held pass.

    Raises:
        LeaseLost, JobNotFound: It was not.
    """
    match word:
        case b"ok":
            return
        case b"lost":
            msg = f"the lease on {lease.key} is lost: it ran out, or the job was cancelled or replaced"
            raise LeaseLost(msg)
        case _:
            msg = f"{lease.key} is gone"
            raise JobNotFound(msg)


def placed_of(key: JobKey, answer: bytes) -> Placed | DulyError:
    """
    Where enqueue.lua put a job, or why it did not.
    """
    word, revision, due_ms, state = answer.decode().split(" ")
    match word:
        case "exists":
            return JobExists(f"{key} exists already, {JobState(int(state)).name}")
        case "unknown":
            return _unknown(key)
        case "full":
            return full(key)
    return Placed(key, word, int(revision), int(float(due_ms)), JobState(int(state)))  # type: ignore[arg-type]  # one of its words


def full(key: JobKey) -> QueueFull:
    """
    What to say of a job that its topic has no room for.
    """
    return QueueFull(f"topic {key.topic} is at its backlog limit; {key} was not stored")


def hydrated_of(key: JobKey, answer: bytes, upto: Upto | None) -> Hydrated:
    """
    What hydrate.lua made of a promise.
    """
    word, revision, state = answer.decode().split(" ")
    return Hydrated(key, word, int(revision), JobState(int(state)), upto)  # type: ignore[arg-type]  # as the script says


def _unknown(key: JobKey) -> OutcomeUnknown:
    """
    What to say of a call that arrived, maybe again, when it was remembered no more.
    """
    return OutcomeUnknown(
        f"{key} was changed since this call was first sent, which may have been made then: look at the job, "
        "and call again if need be"
    )


def cancelled_of(key: JobKey, word: bytes) -> JobState | Accepted | None:
    """
    What cancel.lua said of a job.

    Raises:
        Conflict: Another revision of it stands.
        OutcomeUnknown: The call is older than what is remembered of calls, and the job was changed since.
    """
    match word:
        case b"gone":
            return None
        case b"accepted":
            return "accepted"
        case b"conflict":
            raise Conflict(f"another revision of {key} stands: it is not cancelled")
        case b"unknown":
            raise _unknown(key)
    return JobState(int(word.split()[0]))


def moved_of(key: JobKey, answer: bytes, word: Literal["rescheduled", "requeued"]) -> Placed:
    """
    Where reschedule.lua or requeue.lua put a job.

    Raises:
        JobNotFound: There is none.
        Conflict: It is in no state for that, or another revision stands.
        OutcomeUnknown: See `cancelled_of`.
    """
    said, revision, due_ms, state = answer.decode().split(" ")
    match said:
        case "unknown":
            raise _unknown(key)
        case "gone":
            msg = f"there is no job {key}"
            raise JobNotFound(msg)
        case "conflict":
            msg = f"{key} is {JobState(int(state)).name} at revision {revision}: it cannot be {word}"
            raise Conflict(msg)
        case "accepted":
            return Placed(key, "accepted", 0, int(float(due_ms)), JobState.scheduled)
    return Placed(key, word, int(revision), int(float(due_ms)), JobState(int(state)))


def held_of(key: JobKey, answer: bytes) -> Held | None:
    """
    How a job stood before hold.lua.
    """
    said, revision, due_ms, state = answer.decode().split(" ")
    if said == "gone":
        return None
    return Held(key, said == "ok", int(revision), int(float(due_ms)), JobState(int(state)))


def refused(error: BaseException) -> bool:
    """
    Return whether the server refused what was sent, and would refuse it again: a script failed on it, or it
    is more than the server takes in one call.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ReplyError):
        cause = cause.__cause__
    # Any other word in front says how the server is, not what it was sent: OOM, MISCONF, NOPERM.
    if cause is None or cause.code not in ("ERR", "WRONGTYPE"):
        return False
    return "@user_" in cause.said or cause.said.startswith("Protocol error")


def unsound(error: DulyError) -> bool:
    """
    Whether the queue was not compared with its record since it may have lost something.
    """
    return "UNSOUND" in str(error)
