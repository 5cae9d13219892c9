"""
A job as it is told to programs: the document that `duly jobs show --json` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import Unreadable, decode
from duly.durations import say_time
from duly.job import Job, JobState, moment
from duly.options import TOLD

if TYPE_CHECKING:
    from datetime import datetime


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    id: str
    state: str
    revision: int
    priority: str
    attempts: int
    crashes: int
    due_at: str | None
    started_at: str | None
    finished_at: str | None
    lateness_ms: int | None


class EndedJob(_Told, frozen=True, kw_only=True):
    """
    What a reply tells of its job.
    """

    result: Any
    error: dict[str, Any] | None


class _Claimed(_Told, frozen=True, kw_only=True):
    worker: str | None
    lease_until: str | None


if TYPE_CHECKING:
    _WithOptions = _Claimed
else:
    _WithOptions = msgspec.defstruct(
        "_WithOptions",
        [(option.document, option.told) for option in TOLD],
        bases=(_Claimed,),
        frozen=True,
        kw_only=True,
    )


class JobDocument(_WithOptions, frozen=True, kw_only=True):
    """
    One job; what does not apply to it is null.
    """

    progress: Any
    payload: Any
    unreadable: str | None
    result: Any
    error: dict[str, Any] | None


def ended_fields_of(job: Job) -> dict[str, Any]:
    """
    What a reply tells of its job, by its fields.
    """
    said = fields_of(job)
    return {name: said[name] for name in EndedJob.__struct_fields__}


def job_document(job: Job) -> JobDocument:
    """
    Describe a job.
    """
    return JobDocument(**fields_of(job))


def fields_of(job: Job) -> dict[str, Any]:
    """
    What a document says about a job, by its fields.
    """
    payload, unreadable = _payload(job.payload)
    succeeded = job.state is JobState.succeeded
    return dict(  # as the document has them
        topic=job.topic,
        id=job.id,
        state=job.state.name,
        revision=job.revision,
        priority=job.priority,
        attempts=job.attempts,
        crashes=job.crashes,
        due_at=_said(job.due_at),
        started_at=_said(job.started_at),
        finished_at=_said(job.finished_at),
        lateness_ms=job.lateness_ms,
        worker=job.worker or None,
        lease_until=_said(moment(job.lease_ms)) if job.state is JobState.running else None,
        progress=value_of(job.progress),
        payload=payload,
        unreadable=unreadable,
        result=value_of(job.outcome) if succeeded else None,
        error=error_of(job),
        **{option.document: option.tell(option.of(job)) for option in TOLD},
    )


def error_of(job: Job) -> dict[str, Any] | None:
    """
    Why a job is dead or cancelled, or why its last attempt failed; None if nothing went wrong.
    """
    if job.state is JobState.succeeded or not job.outcome:
        return None
    told = value_of(job.outcome)
    return told if isinstance(told, dict) else {"type": "unknown", "message": str(told)}


def error_line(job: Job) -> str:
    """
    The same in one line, empty if nothing went wrong.
    """
    told = error_of(job)
    if told is None:
        return ""
    return ": ".join(str(told[part]) for part in ("type", "message") if told.get(part))


def value_of(data: bytes) -> Any:
    """
    What stored JSON says; None if there is none, or if it cannot be read.
    """
    try:
        return decode(data) if data else None
    except Unreadable:
        return None


def _payload(data: bytes) -> tuple[Any, str | None]:
    # Other clients may have stored what is no JSON; whoever has to mend it wants to see it.
    try:
        return (decode(data) if data else None), None
    except Unreadable:
        return None, data.decode(errors="backslashreplace")


def _said(moment_: datetime | None) -> str | None:
    return None if moment_ is None else say_time(moment_)
