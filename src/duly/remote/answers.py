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
    JobCancelled,
    JobExists,
    JobFailed,
    JobNotFound,
    LeaseLost,
    OutcomeUnknown,
    QueueFull,
    StoreUnavailable,
    UsageError,
)
from duly.job import Job, JobKey, JobState, Placed
from duly.options import TIME, TOLD, due_at_ms

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
    "full": QueueFull,
    "unavailable": OutcomeUnknown,
    "too-many-requests": StoreUnavailable,
    "unauthenticated": StoreUnavailable,
    "forbidden": StoreUnavailable,
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

    outcome: Literal["created", "kept", "replaced", "refused"]
    revision: int = 0
    state: StateName = "ready"
    due_at: str | None = None
    problem: Problem | None = None


if TYPE_CHECKING:
    _Options = msgspec.Struct
else:
    _Options = msgspec.defstruct(
        "_Options",
        [(option.document, option.told, None) for option in TOLD],
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
    started_at: str | None = None
    finished_at: str | None = None
    lateness_ms: int | None = None
    worker: str | None = None
    lease_until: str | None = None
    progress: msgspec.Raw = _NOTHING
    payload: msgspec.Raw = _NOTHING
    unreadable: str | None = None
    result: msgspec.Raw = _NOTHING
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
    Some jobs, and where to go on.
    """

    jobs: list[JobAnswer]
    cursor: str | None


class TopicAnswer(msgspec.Struct, frozen=True):
    """
    A topic; how many jobs it has is not asked for here.
    """

    topic: str


class TopicsAnswer(msgspec.Struct, frozen=True):
    """
    Every topic that the key sees.
    """

    topics: list[TopicAnswer]


def error_of(problem: Problem, place: str) -> DulyError:
    """
    The error that the queue's own server would have been the cause of.
    """
    if problem.kind in ("not-found", "method-not-allowed"):
        return UsageError(f"the service at {place} has no such call: {problem.detail}")
    # What is not known here was refused for something about the call.
    return _ERRORS.get(problem.kind, UsageError)(problem.detail or problem.kind)


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
        said = getattr(answer, option.document)
        if option.kept == "envelope":
            envelope[option.name] = said
        else:
            record[option.field] = ms_of(said) if option.kind is TIME else said or 0
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
        started_ms=ms_of(answer.started_at),
        ended_ms=ms_of(answer.finished_at),
        lateness_ms=answer.lateness_ms,
        worker=answer.worker or "",
        lease_ms=ms_of(answer.lease_until),
        outcome=outcome_of(answer),
        progress=_said(answer.progress),
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
