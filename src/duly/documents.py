"""
A job as it is told to programs: the document that `duly jobs show --json` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import Envelope, Unreadable, decode
from duly.durations import say_ms
from duly.job import Job, JobKey, JobState
from duly.options import TOLD


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    id: str
    state: str
    revision: int
    priority: str
    attempts: int
    crashes: int
    due_at: str | None
    scheduled_for: str | None
    created_at: str | None
    updated_at: str | None
    started_at: str | None
    finished_at: str | None
    lateness_ms: int | None


if TYPE_CHECKING:
    _WithOptions = _Told
else:
    _WithOptions = msgspec.defstruct(
        "_WithOptions",
        [(option.name, option.told) for option in TOLD],
        bases=(_Told,),
        frozen=True,
        kw_only=True,
    )


class EndedJob(_WithOptions, frozen=True, kw_only=True):
    """
    What a reply tells of its job.
    """

    result: Any
    error: dict[str, Any] | None


class JobDocument(_WithOptions, frozen=True, kw_only=True):
    """
    One job; what does not apply to it is null.
    """

    worker: str | None
    lease_until: str | None
    progress: Any
    payload: Any
    unreadable: str | None
    result: Any
    result_gone: bool
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
        due_at=say_ms(job.due_ms),
        scheduled_for=say_ms(job.scheduled_ms),
        created_at=say_ms(job.created_ms),
        updated_at=say_ms(job.updated_ms),
        started_at=say_ms(job.started_ms),
        finished_at=say_ms(job.ended_ms),
        lateness_ms=job.lateness_ms,
        worker=job.worker or None,
        lease_until=say_ms(job.lease_ms) if job.state is JobState.running else None,
        progress=value_of(job.progress),
        payload=payload,
        unreadable=unreadable,
        result=value_of(job.outcome) if succeeded else None,
        result_gone=job.result_gone,
        error=error_of(job),
        **told_options(job),
    )


def told_options(job: Job) -> dict[str, Any]:
    """
    What a document says about the options of a job, by their names: as they were sent, attempts as they hold.
    """
    said = _IN_RECORD if job.envelope in (None, _EMPTY) else TOLD
    options = _UNSAID | {option.name: option.tell(option.of(job)) for option in said}
    options["max_attempts"] = job.max_attempts or options["max_attempts"]
    return options


_EMPTY = Envelope()
_IN_RECORD = tuple(option for option in TOLD if option.kept == "record")
_UNSAID: dict[str, Any] = dict.fromkeys(option.name for option in TOLD)


def error_of(job: Job) -> dict[str, Any] | None:
    """
    Why a job is dead or cancelled, or why its last attempt failed; None if nothing went wrong.
    """
    if job.state is JobState.succeeded or not job.outcome:
        return None
    told = value_of(job.outcome)
    return told if isinstance(told, dict) else {"type": "unknown", "message": str(told)}


def public_error_of(job: Job) -> dict[str, Any] | None:
    """
    Return the same for callers who may not see what a handler wrote: the type, and a reference.

    A reference is the id and the attempt, by which the worker's log and `duly jobs show` tell the message.
    """
    told = error_of(job)
    if told is None or told.keys() == {"type"}:
        return told
    return {"type": told.get("type"), "reference": f"{job.id}#{job.attempts}"}


def result_gone(key: JobKey) -> str:
    """
    Say that a job has succeeded and its result is gone, and what to do about the next one.
    """
    return (
        f"{key} has succeeded, but its result was not kept: with retain=0 (or keep_succeeded=0) it is kept "
        "only if somebody waits for it already when the job ends; send such jobs with retain=60, or longer"
    )


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
