"""
A job before it is sent: what to run and how, checked when it becomes an order.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, get_args

import msgspec

from duly.allowlist import AllowList
from duly.backoff import Backoff
from duly.binding import Binding
from duly.codec import DEFAULT_CODEC, Codec, Envelope, encode_envelope
from duly.durations import Seconds, parse_duration
from duly.errors import UsageError
from duly.ids import new_id
from duly.job import PER_MS, Job, JobKey, Lane, Once, OnConflict, Order, Priority, check_id, check_topic
from duly.options import OPTIONS, due_at_ms

if TYPE_CHECKING:
    from typing import Unpack

    from duly.job import Placed

R_co = TypeVar("R_co", covariant=True)

_LANES: dict[str, Lane] = {word: Lane[word] for word in get_args(Priority)}
_CONFLICTS = frozenset(get_args(OnConflict))

CALLBACK_CRASHES = 20  #: of deliverers, before they are held against a job with a callback


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What one job may have: bytes, and where its callback may go.
    """

    payload: int = 256 * 1024
    result: int = 256 * 1024
    context: int = 8 * 1024
    callbacks: AllowList | None = field(default_factory=AllowList)  #: None: the HTTP service checks it


class Options(TypedDict, total=False):
    """
    What may be said about a job beside what it does: `duly.options`.  None means: not said.
    """

    id: str | None
    delay: Seconds | None
    due_at: datetime | None
    expires: datetime | None
    priority: Priority
    ttr: Seconds | None
    max_attempts: int | None
    backoff: Backoff | None
    context: dict[str, Any] | None
    on_conflict: OnConflict
    retain: Seconds | None
    max_crashes: int | None
    callback: str | None
    reply_to: str | None


class ResultReader(msgspec.Struct, gc=False, eq=False):
    """
    How a result is read: as the handler that a job was made from says.

    It is no part of what a job says: jobs compare without it, and another process does without it.

    Python's collector does not look at one, nor therefore at a job that has one: a hundred thousand jobs
    made a bulk enqueue a sixth slower. So each job gets its own: a cycle through one that a handler keeps
    would last.
    """

    binding: Binding

    def read(self, data: bytes) -> Any:
        """
        Read what a handler returned.

        Raises:
            Unreadable: It is something else.
        """
        return self.binding.decode_result(data)

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, ResultReader)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return "…"

    def __deepcopy__(self, memo: object) -> ResultReader:
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # annotations and decoders cannot be pickled


class NewJob(msgspec.Struct, Generic[R_co], frozen=True):
    """
    A job to be, whose handler answers with an `R_co`.  Made by `Handler.job` and `new_job`.
    """

    topic: str
    payload: bytes
    id: str | None = None
    delay: Seconds | None = None
    due_at: datetime | None = None
    expires: datetime | None = None
    priority: Priority = "normal"
    ttr: Seconds | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    context: dict[str, Any] | None = None
    on_conflict: OnConflict = "keep"
    retain: Seconds | None = None
    max_crashes: int | None = None
    callback: str | None = None
    reply_to: str | None = None
    once: Once | None = None  #: not an option: the call, for senders that repeat it
    reader: ResultReader | None = None  #: not an option, and not sent: for the handle on the job

    def options(self, **changes: Unpack[Options]) -> NewJob[R_co]:
        """
        Make a copy with these options; they are checked when the job is sent.

        Raises:
            UsageError: There is no such option.
        """
        if not changes.keys() <= _OPTIONS:
            raise _unknown(changes)
        return msgspec.structs.replace(self, **changes)

    def order(self, limits: Limits, *, topic: str | None = None) -> Order:
        """
        Check everything and resolve it into what the store takes; *topic* is its own, if that was checked.

        Raises:
            UsageError: Something is wrong; the message says what.
        """
        if topic is None:
            topic = check_topic(self.topic)
        payload, delay, due_at = self.payload, self.delay, self.due_at
        if not isinstance(payload, bytes):
            raise UsageError(
                f"payload of a NewJob must be bytes of JSON, not {payload!r}: use Handler.job(), or "
                "app.enqueue(topic, payload)"
            )
        if len(payload) > limits.payload:
            raise UsageError(f"payload is {len(payload)} bytes, the limit is {limits.payload}")
        if delay is not None and due_at is not None:
            raise UsageError("say either delay or due_at, not both")
        try:
            lane = _LANES[self.priority]
        except (KeyError, TypeError):
            raise UsageError(f"priority={self.priority!r} must be one of {', '.join(_LANES)}") from None
        if self.on_conflict != "keep" and (
            not isinstance(self.on_conflict, str) or self.on_conflict not in _CONFLICTS
        ):
            raise UsageError(f"on_conflict={self.on_conflict!r} must be keep, replace or raise")
        # Spelt, not read from the description: this is asked of every job that is sent.
        plain = (
            self.expires is None
            and self.ttr is None
            and self.max_attempts is None
            and self.backoff is None
            and self.context is None
            and self.retain is None
            and self.max_crashes is None
            and self.callback is None
            and self.reply_to is None
        )
        job = self
        if self.callback is not None:
            if lane is not Lane.normal:
                raise UsageError("a job with a callback has no priority: it waits in a lane of its own")
            lane = Lane.callback
            if not self.max_crashes:
                # Our own code delivers it: that a process was lost meanwhile says nothing about the job.
                job = msgspec.structs.replace(self, max_crashes=CALLBACK_CRASHES)
        key = JobKey(topic, new_id() if self.id is None else check_id(self.id))
        delay_ms = None if delay is None else parse_duration(delay, "delay")
        due_ms = None if due_at is None else due_at_ms(due_at)
        if plain:
            return Order(key, payload, delay_ms, due_ms, lane, on_conflict=self.on_conflict, once=self.once)
        record, envelope = _packed(job, limits)
        packed = encode_envelope(Envelope(**envelope)) if envelope else b""
        return Order(
            key,
            payload,
            delay_ms,
            due_ms,
            lane,
            envelope=packed,
            on_conflict=self.on_conflict,
            once=self.once,
            **record,
        )

    def placed(self, placed: Placed, limits: Limits) -> Job:
        """
        The job as it stands right after it was stored, without asking for it.
        """
        record, envelope = _packed(self, limits)
        return Job(
            *placed.key,
            placed.state,
            placed.revision,
            self.priority,
            attempts=0,
            crashes=0,
            payload=self.payload,
            due_ms=placed.due_ms,
            scheduled_ms=placed.due_ms,
            created_ms=placed.revision // PER_MS,
            updated_ms=placed.revision // PER_MS,
            max_attempts=self.max_attempts,
            envelope=Envelope(**envelope),
            **{field: value for field, value in record.items() if field in _IN_JOB},
        )


_KEPT = [
    (option.kept == "record", option.field, option.kind.pack, option) for option in OPTIONS if option.kept
]
_kept_of = attrgetter(*(option.name for *_, option in _KEPT))
_IN_JOB = Job.__dataclass_fields__.keys()


def _packed(job: NewJob[Any], limits: Limits) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    What record and envelope keep of the options that were said, once they are checked.
    """
    record: dict[str, Any] = {}
    envelope: dict[str, Any] = {}
    for at, value in enumerate(_kept_of(job)):
        if value is not None:
            in_record, field, pack, option = _KEPT[at]
            (record if in_record else envelope)[field] = pack(value, option, limits)
    return record, envelope


_OPTIONS = Options.__annotations__.keys()


def new_job(topic: str, payload: object, limits: Limits, codec: Codec = DEFAULT_CODEC) -> NewJob[Any]:
    """
    Describe a job by name, for senders that lack the handler's code.

    Raises:
        UsageError: The topic is no valid name, or the payload has no form in JSON or is too large.
    """
    return NewJob(check_topic(topic), codec.encode(payload, limit=limits.payload))


def _unknown(changes: object) -> UsageError:
    names = [name for name in dict(changes) if name not in _OPTIONS]  # type: ignore[call-overload]  # a TypedDict is a dict
    near = difflib.get_close_matches(names[0], _OPTIONS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_OPTIONS)}"
    return UsageError(f"unknown option {names[0]}; {hint}")
