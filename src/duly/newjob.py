"""
A job before it is sent: what to run and how, checked when it becomes an order.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, get_args

import msgspec

from duly.backoff import MAX_DUE_MS, Backoff, Seconds, to_wire, wait_ms
from duly.codec import Envelope, encode, encode_envelope
from duly.errors import UsageError
from duly.ids import new_id
from duly.job import JobKey, Lane, OnConflict, Order, Priority, check_id, check_topic
from duly.urls import parse_url

if TYPE_CHECKING:
    from typing import Unpack

R_co = TypeVar("R_co", covariant=True)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LANES: dict[str, Lane] = {word: Lane[word] for word in get_args(Priority)}
_CONFLICTS = frozenset(get_args(OnConflict))

CALLBACK_CRASHES = 20  #: of deliverers, before they are held against a job with a callback


@dataclass(frozen=True, slots=True)
class Limits:
    """
    How large what travels may be, in bytes.
    """

    payload: int = 256 * 1024
    result: int = 256 * 1024
    context: int = 8 * 1024


class Options(TypedDict, total=False):
    """
    What may be said about a job beside what it does.  None means: not said.
    """

    id: str | None  #: generated if not said
    delay: Seconds | None  #: counted by the server's clock; excludes due_at
    due_at: datetime | None  #: aware; due now if past
    expires: datetime | None  #: aware; do not start later
    priority: Priority
    ttr: Seconds | None  #: time to run; the handler's if not said
    max_attempts: int | None  #: the handler's if not said
    backoff: Backoff | None  #: the handler's if not said
    context: dict[str, Any] | None  #: travels with the job
    on_conflict: OnConflict
    retain: Seconds | None  #: how long to keep it once ended; the namespace's if not said
    max_crashes: int | None  #: the handler's if not said
    callback: str | None  #: a URL to deliver it to, instead of running a handler
    reply_to: str | None  #: the queue of replies that is told when it has ended


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

    def options(self, **changes: Unpack[Options]) -> NewJob[R_co]:
        """
        Make a copy with these options; they are checked when the job is sent.

        Raises:
            UsageError: There is no such option.
        """
        if not changes.keys() <= _OPTIONS:
            raise _unknown(changes)
        return msgspec.structs.replace(self, **changes)

    def order(self, limits: Limits) -> Order:
        """
        Check everything and resolve it into what the store takes.

        Raises:
            UsageError: Something is wrong; the message says what.
        """
        payload, delay, due_at = self.payload, self.delay, self.due_at
        if len(payload) > limits.payload:
            raise UsageError(f"payload is {len(payload)} bytes, the limit is {limits.payload}")
        if delay is not None and due_at is not None:
            raise UsageError("say either delay or due_at, not both")
        try:
            lane = _LANES[self.priority]
        except (KeyError, TypeError):
            raise UsageError(f"priority={self.priority!r} must be one of {', '.join(_LANES)}") from None
        if self.on_conflict not in _CONFLICTS:
            raise UsageError(f"on_conflict={self.on_conflict!r} must be keep, replace or raise")
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
        max_crashes = self.max_crashes
        if self.callback is not None:
            if lane is not Lane.normal:
                raise UsageError("a job with a callback has no priority: it waits in a lane of its own")
            lane = Lane.callback
            # Our own code delivers it: that a process was lost meanwhile says nothing about the job.
            max_crashes = max_crashes or CALLBACK_CRASHES
        key = JobKey(self.topic, new_id() if self.id is None else check_id(self.id))
        delay_ms = None if delay is None else wait_ms(delay)
        due_ms = None if due_at is None else due_at_ms(due_at)
        if plain:
            return Order(key, payload, delay_ms, due_ms, lane, on_conflict=self.on_conflict)
        return Order(
            key,
            payload,
            delay_ms,
            due_ms,
            lane,
            expires_ms=0 if self.expires is None else _expires_ms(self.expires),
            ttr_ms=0 if self.ttr is None else positive_ms(self.ttr, "ttr"),
            retain_s=None if self.retain is None else -(-wait_ms(self.retain, "retain") // 1_000),
            max_crashes=0 if max_crashes is None else at_least_one(max_crashes, "max_crashes", 255),
            envelope=self._envelope(limits),
            on_conflict=self.on_conflict,
        )

    def _envelope(self, limits: Limits) -> bytes:
        max_attempts, backoff, context = self.max_attempts, self.backoff, self.context
        if max_attempts is not None:
            at_least_one(max_attempts, "max_attempts")
        if context is not None:
            if not isinstance(context, dict) or not all(isinstance(name, str) for name in context):
                raise UsageError(f"context must be a dict with str keys, not {context!r}")
            encode(context, what="context", limit=limits.context)
        words = None if backoff is None else to_wire(backoff)
        callback = None if self.callback is None else parse_url(self.callback).url
        reply_to = None if self.reply_to is None else check_topic(self.reply_to, "reply_to")
        return encode_envelope(Envelope(reply_to, max_attempts, words, context or None, callback))


_OPTIONS = Options.__annotations__.keys()


def new_job(topic: str, payload: object, limits: Limits) -> NewJob[Any]:
    """
    Describe a job by name, for senders that lack the handler's code.

    Raises:
        UsageError: The topic is no valid name, or the payload has no form in JSON or is too large.
    """
    return NewJob(check_topic(topic), encode(payload, limit=limits.payload))


def due_at_ms(due_at: datetime) -> int:
    """
    Return a due time in milliseconds, rounded up: never early.

    Raises:
        UsageError: It is naive, or after the year 9999.
    """
    ms = -(-_since_epoch(due_at, "due_at") // _MS)
    if ms > MAX_DUE_MS:
        raise UsageError(f"due_at={due_at} is after the year 9999")
    return max(ms, 1)


def _expires_ms(expires: datetime) -> int:
    # Rounded down: what must not start later must not start a part of a millisecond later.
    return min(max(_since_epoch(expires, "expires") // _MS, 1), MAX_DUE_MS)


def _since_epoch(moment: datetime, what: str) -> timedelta:
    if not isinstance(moment, datetime):
        raise UsageError(f"{what} must be a datetime, not {moment!r}")
    try:
        return moment - _EPOCH
    except TypeError:
        raise UsageError(
            f"{what}={moment!r} has no time zone; say datetime(…, tzinfo=UTC) or .astimezone()"
        ) from None


def positive_ms(wait: Seconds, what: str) -> int:
    """
    Return a length of time in milliseconds.

    Raises:
        UsageError: It is not more than zero.
    """
    ms = wait_ms(wait, what)
    if not ms:
        raise UsageError(f"{what} must be more than zero")
    return ms


def at_least_one(number: int, what: str, most: int = 65_535) -> int:
    """
    Return *number* if it is a count of one or more.

    Raises:
        UsageError: It is not.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise UsageError(f"{what}={number!r} must be a whole number from 1 to {most}")
    return number


def _unknown(changes: object) -> UsageError:
    names = [name for name in dict(changes) if name not in _OPTIONS]  # type: ignore[call-overload]  # a TypedDict is a dict
    near = difflib.get_close_matches(names[0], _OPTIONS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_OPTIONS)}"
    return UsageError(f"unknown option {names[0]}; {hint}")
