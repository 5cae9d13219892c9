"""
What travels over HTTP: the requests that are understood, and the documents that are answered.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duly.backoff import DEFAULT
from duly.codec import check_json
from duly.documents import JobDocument, fields_of
from duly.durations import parse_duration, parse_time
from duly.http.grammar import TYPES, Duration, Time
from duly.job import Accepted, check_topic
from duly.newjob import NewJob
from duly.options import BACKOFF, OPTIONS, fields

if TYPE_CHECKING:
    from datetime import datetime

    from duly.job import Job

NULL = msgspec.Raw(b"null")


class FixedBackoff(msgspec.Struct, tag_field="kind", tag="fixed", forbid_unknown_fields=True):
    """
    The same wait before every attempt.
    """

    delay: Duration


class ExponentialBackoff(msgspec.Struct, tag_field="kind", tag="exponential", forbid_unknown_fields=True):
    """
    A wait that grows with each attempt.
    """

    base: Duration = DEFAULT.base  # type: ignore[assignment]  # a number, once it is made
    cap: Duration = DEFAULT.cap  # type: ignore[assignment]  # likewise; not below base
    factor: Annotated[float, Meta(ge=1, le=1000)] = DEFAULT.factor
    jitter: Annotated[float, Meta(ge=0, le=1)] | None = None


class IntervalsBackoff(msgspec.Struct, tag_field="kind", tag="intervals", forbid_unknown_fields=True):
    """
    One wait after the other, the last again and again.
    """

    delays: Annotated[list[Duration], Meta(min_length=1, max_length=1000)]


_TYPES = TYPES | {BACKOFF: lambda _: FixedBackoff | ExponentialBackoff | IntervalsBackoff}


if TYPE_CHECKING:

    class JobOptions(msgspec.Struct, kw_only=True):
        """
        What may be said about a job beside its payload: any of `duly.options`.
        """

        def __getattr__(self, option: str) -> Any: ...

else:
    JobOptions = msgspec.defstruct(
        "JobOptions",
        fields(lambda option: _TYPES[option.kind](option)),
        kw_only=True,
        forbid_unknown_fields=True,
    )


class JobRequest(JobOptions, kw_only=True, forbid_unknown_fields=True):
    """
    A job to be: POST /v1/topics/{topic}/jobs, or one line of a batch.
    """

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)


_SAID = {"not": {"type": "null"}}

#: The same, with what the fields alone do not say: not both of the two.
JobBody = Annotated[
    JobRequest,
    Meta(
        extra_json_schema={
            "not": {"required": ["delay", "due_at"], "properties": {"delay": _SAID, "due_at": _SAID}}
        }
    ),
]


class Reschedule(msgspec.Struct, forbid_unknown_fields=True):
    """
    Another due time: one of the two.
    """

    delay: Duration | UnsetType = UNSET
    due_at: Time | UnsetType = UNSET


RescheduleBody = Annotated[Reschedule, Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})]


class JobView(JobDocument, kw_only=True, frozen=True):
    """
    A job as it is now.
    """


class JobReceipt(msgspec.Struct, kw_only=True, frozen=True):
    """
    The same for a key without the scope read: which job, its state and its times, and nothing besides.
    """

    topic: str
    id: str
    state: str
    revision: int
    due_at: str | None
    scheduled_for: str | None
    created_at: str | None
    updated_at: str | None
    started_at: str | None
    finished_at: str | None


class AcceptedView(msgspec.Struct, kw_only=True, frozen=True):
    """
    What was asked of a job that is not in the queue, and may wait in its table of far-future jobs.
    """

    topic: str
    id: str
    outcome: Accepted = "accepted"
    due_at: str | None = None


class JobPage(msgspec.Struct, omit_defaults=True):
    """
    Some jobs, and where to go on; null at the end.
    """

    jobs: list[JobView]
    cursor: str | None
    places: list[str] = []  #: with places=true: cursors that go on behind each of the jobs


#: The same without what may be large.
JobSummary = msgspec.defstruct(
    "JobSummary",
    [
        (each.name, each.type)
        for each in msgspec.structs.fields(JobView)
        if each.name not in ("payload", "result")
    ],
    kw_only=True,
    frozen=True,
)


class BasicPage(msgspec.Struct, omit_defaults=True):
    """
    The same with view=basic.
    """

    jobs: list[JobSummary]  # type: ignore[valid-type]  # made of the fields of another
    cursor: str | None
    places: list[str] = []


def view_of(job: Job, **more: Any) -> JobView:
    """
    Describe a job; *more* says what is known better.
    """
    said = fields_of(job)
    return JobView(**(said | more if more else said))


def summary_of(job: Job) -> msgspec.Struct:
    """
    Describe a job without its payload and its result.
    """
    view = view_of(job)
    return JobSummary(**{name: getattr(view, name) for name in JobSummary.__struct_fields__})


def receipt_of(job: Job) -> JobReceipt:
    """
    Describe a job without what it carries.
    """
    said = fields_of(job)
    return JobReceipt(**{name: said[name] for name in JobReceipt.__struct_fields__})


def seconds(value: float | str | None, what: str) -> float | None:
    """
    A duration as the queue takes it: seconds, or ISO 8601.

    Raises:
        UsageError: It is none.
    """
    return None if value is None else parse_duration(value, what) / 1000


def time_of(text: str | None, what: str) -> datetime | None:
    """
    A time as the queue takes it: RFC 3339 with an offset.

    Raises:
        UsageError: It is none.
    """
    return None if text is None else parse_time(text, what)


#: Options that are not taken as JSON has them.
_READ = tuple(option for option in OPTIONS if option.kind.read is not None)


def new_job_of(topic: str, request: JobRequest) -> NewJob[Any]:
    """
    The job that a request describes.

    Raises:
        UsageError: A value is wrong.
    """
    said = msgspec.structs.asdict(request)
    payload = bytes(said.pop("payload"))
    check_json(payload)
    if said["backoff"] is not None:
        words = msgspec.to_builtins(said["backoff"])
        said["backoff"] = {name: value for name, value in words.items() if value is not None}
    for option in _READ:
        if said[option.name] is not None:
            said[option.name] = option.read(said[option.name])
    return NewJob(check_topic(topic), payload, **said)


def retry_after(job: Job, now_ms: int) -> str:
    """
    When it is worth to ask again for a job that has not ended.
    """
    left_s = math.ceil(max(job.due_ms - now_ms, 0) / 1000)
    return str(min(max(left_s, 1), 3600))
