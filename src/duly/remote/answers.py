"""
What the service answers, read back into what its server would have said: jobs, outcomes, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from duly.codec import Envelope
from duly.durations import parse_time
from duly.errors import (
    Conflict,
    DulyError,
    EventsLost,
    JobCancelled,
    JobExists,
    JobFailed,
    JobNotFound,
    LeaseLost,
    OutcomeUnknown,
    QueueFull,
    RecordUnavailable,
    ResultGone,
    ServerUnsuitable,
    ServiceFault,
    StoreUnavailable,
    Unsupported,
    UsageError,
)
from duly.events import Event, Offset, Verb
from duly.glance import TopicDocument
from duly.job import Job, JobKey, JobState, Placed
from duly.options import TOLD, due_at_ms
from duly.views import wrong_cursor

#: What the type of every problem of a duly service begins with.
TYPES = "urn:duly:problem:"

_ERRORS: dict[str, type[DulyError]] = {
    "exists": JobExists,
    "job-not-found": JobNotFound,
    "conflict": Conflict,
    "outdated": Conflict,
    "unfinished": Conflict,
    "lease-lost": LeaseLost,
    "dead": JobFailed,
    "cancelled": JobCancelled,
    "result-gone": ResultGone,
    "full": QueueFull,
    "keys-full": QueueFull,
    "unavailable": StoreUnavailable,
    "out-of-memory": StoreUnavailable,
    "record-unavailable": RecordUnavailable,
    "outcome-unknown": OutcomeUnknown,
    "too-many-requests": StoreUnavailable,
    "unauthenticated": ServerUnsuitable,
    "forbidden": ServerUnsuitable,
    "cross-site": ServerUnsuitable,
    "misdirected": ServerUnsuitable,
}

StateName = Literal["scheduled", "ready", "running", "succeeded", "dead", "cancelled"]

_NOTHING = msgspec.Raw(b"null")


class Problem(msgspec.Struct, frozen=True):
    """
    Why a call was not answered as hoped for (RFC 9457).
    """

    type: str
    detail: str = ""
    field: str | None = None
    state: str | None = None
    status: int = 422

    @property
    def kind(self) -> str:
        """
        Its word.
        """
        return self.type.removeprefix(TYPES)


class BatchLine(msgspec.Struct, frozen=True):
    """
    What became of one job of a batch.
    """

    outcome: Literal["created", "kept", "replaced", "refused", "unknown", "stopped"]
    revision: int = 0
    state: StateName = "ready"
    due_at: str | None = None
    problem: Problem | None = None


if TYPE_CHECKING:
    from collections.abc import Mapping

    _Options = msgspec.Struct
else:
    _Options = msgspec.defstruct(
        "_Options",
        [(option.name, option.told, None) for option in TOLD],
        frozen=True,
        kw_only=True,
    )


class JobAnswer(_Options, frozen=True, kw_only=True):
    """
    A job as the service tells it; what a later service tells besides is passed over.
    """

    topic: str
    id: str
    state: StateName
    revision: int
    priority: str = "normal"
    attempts: int = 0
    crashes: int = 0
    due_at: str | None = None
    scheduled_for: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    lateness_ms: int | None = None
    worker: str | None = None
    lease_until: str | None = None
    progress: msgspec.Raw = _NOTHING
    payload: msgspec.Raw = _NOTHING
    unreadable: str | None = None
    result: msgspec.Raw = _NOTHING
    result_gone: bool = False
    error: msgspec.Raw = _NOTHING


class ReplyAnswer(msgspec.Struct, frozen=True):
    """
    What became of one job.
    """

    id: str
    job: JobAnswer


class RepliesAnswer(msgspec.Struct, frozen=True):
    """
    The replies that were there, and how many were dropped unread.
    """

    replies: list[ReplyAnswer]
    dropped: int = 0


class AckedAnswer(msgspec.Struct, frozen=True):
    """
    How many replies were still there.
    """

    acked: int


class PageAnswer(msgspec.Struct, frozen=True):
    """
    Some jobs, and where to go on, behind all of them and behind each.
    """

    jobs: list[JobAnswer]
    cursor: str | None
    places: list[str] = []


class OutcomeAnswer(msgspec.Struct, frozen=True):
    """
    What became of one of many jobs.
    """

    outcome: Literal["cancelled", "requeued", "ended", "accepted", "refused"]
    state: StateName | None = None
    revision: int | None = None
    due_at: str | None = None
    problem: Problem | None = None


class OutcomesAnswer(msgspec.Struct, frozen=True):
    """
    One outcome for each of many jobs.
    """

    jobs: list[OutcomeAnswer]


class PurgedAnswer(msgspec.Struct, frozen=True):
    """
    How many jobs were cancelled, and where to go on.
    """

    purged: int
    cursor: str | None


class WorkersAnswer(msgspec.Struct, frozen=True):
    """
    What workers say of themselves, a page at a time.
    """

    workers: list[dict[str, Any]]
    cursor: str | None = None


class RevisionsAnswer(msgspec.Struct, frozen=True):
    """
    The newest revisions: of each shard, and with a record one more.
    """

    shards: int
    newest: list[int]


class EventAnswer(msgspec.Struct, frozen=True):
    """
    One event of a stream.
    """

    verb: Verb
    topic: str
    id: str
    at: str
    revision: int
    state: StateName
    priority: str
    attempt: int
    crashes: int
    shard: int
    number: int
    due_at: str | None = None
    lateness_ms: int | None = None
    run_ms: int | None = None
    worker: str | None = None
    reason: str | None = None
    row: int = 0
    epoch: str = ""


class LostAnswer(msgspec.Struct, frozen=True):
    """
    Events of one shard that are gone.
    """

    shard: int
    since: int | None
    until: int | None
    why: str


class TopicsAnswer(msgspec.Struct, frozen=True):
    """
    Topics that the key sees, a page at a time.
    """

    topics: list[TopicDocument]
    cursor: str | None = None


def event_of(answer: EventAnswer) -> Event:
    """
    The event that a document describes.
    """
    return Event(
        shard=answer.shard,
        epoch=answer.epoch,
        counter=answer.number,
        row=answer.row,
        at_ms=ms_of(answer.at),
        verb=answer.verb,
        topic=answer.topic,
        id=answer.id,
        revision=answer.revision,
        state=JobState[answer.state],
        priority=answer.priority,
        attempt=answer.attempt,
        crashes=answer.crashes,
        due_ms=ms_of(answer.due_at),
        lateness_ms=answer.lateness_ms,
        run_ms=answer.run_ms,
        worker=answer.worker or "",
        reason=answer.reason or "",
    )


def gap_of(answer: LostAnswer) -> EventsLost:
    """
    The gap that a document tells of.
    """
    after = Offset("", answer.since - 1, "") if answer.since else None
    return EventsLost(answer.shard, after, None if answer.until is None else answer.until + 1, answer.why)


def error_of(problem: Problem, place: str, said: Mapping[str, object] | None = None) -> DulyError:
    """
    The error that the queue's own server would have been the cause of, where a call *said* this.
    """
    if problem.field == "cursor" and said:
        return wrong_cursor(said.get("cursor"))
    if problem.kind in ("not-found", "method-not-allowed"):
        return Unsupported(f"the service at {place} has no such call: {problem.detail}")
    # What is not known here was refused for something about the call, or by something about the service.
    unknown = UsageError if problem.status < 500 else ServiceFault
    return _ERRORS.get(problem.kind, unknown)(problem.detail or problem.kind)


def placed_of(answer: JobAnswer, word: Any) -> Placed:
    """
    Where a job stands, by what its document says.
    """
    key = JobKey(answer.topic, answer.id)
    return Placed(key, word, answer.revision, ms_of(answer.due_at), JobState[answer.state])


def outcome_of(answer: JobAnswer) -> bytes:
    """
    The result of a succeeded job, the error of others; empty if there is none.
    """
    return _said(answer.result if answer.state == JobState.succeeded.name else answer.error)


class AcceptedAnswer(msgspec.Struct, frozen=True):
    """
    What was asked of a job that may wait in its table of far-future jobs.
    """

    due_at: str | None = None


def accepted_of(key: JobKey, answer: AcceptedAnswer) -> Placed:
    """
    The placement that such an answer stands for.
    """
    return Placed(key, "accepted", 0, ms_of(answer.due_at), JobState.scheduled)


def job_of(answer: JobAnswer) -> Job:
    """
    The job that a document describes.
    """
    record: dict[str, Any] = {}
    envelope: dict[str, Any] = {}
    for option in TOLD:
        kept = option.keep(getattr(answer, option.name))
        if option.kept == "envelope":
            envelope[option.name] = kept
        elif kept is not None:
            record[option.field] = kept
    return Job(
        topic=answer.topic,
        id=answer.id,
        state=JobState[answer.state],
        revision=answer.revision,
        priority=answer.priority,  # type: ignore[arg-type]  # it has no other words
        attempts=answer.attempts,
        crashes=answer.crashes,
        payload=bytes(answer.payload) if answer.unreadable is None else answer.unreadable.encode(),
        due_ms=ms_of(answer.due_at),
        scheduled_ms=ms_of(answer.scheduled_for),
        created_ms=ms_of(answer.created_at),
        updated_ms=ms_of(answer.updated_at),
        started_ms=ms_of(answer.started_at),
        ended_ms=ms_of(answer.finished_at),
        lateness_ms=answer.lateness_ms,
        worker=answer.worker or "",
        lease_ms=ms_of(answer.lease_until),
        outcome=outcome_of(answer),
        result_gone=answer.result_gone,
        progress=_said(answer.progress),
        max_attempts=envelope["max_attempts"],
        envelope=Envelope(**envelope),
        **record,
    )


def _said(value: msgspec.Raw) -> bytes:
    data = bytes(value)
    return b"" if data == b"null" else data


def ms_of(text: str | None) -> int:
    """
    A time in milliseconds; 0 for none.
    """
    return 0 if text is None else due_at_ms(parse_time(text))
