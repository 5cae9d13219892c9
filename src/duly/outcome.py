"""
What becomes of a job after an attempt.  Pure: decided here, written elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from duly.backoff import DEFAULT, Backoff, delay_ms
from duly.durations import Seconds, parse_duration
from duly.errors import UsageError
from duly.failure import error_document, reason_document, signature, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Planned(Exception):
    """
    The base of endings that a handler asks for, by returning or by raising one.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Planned) and type(self) is type(other) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash((type(self), self._value()))

    def _value(self) -> tuple[object, ...]:
        raise NotImplementedError


class Retry(Planned):
    """
    Try again after *delay*, or after the backoff if there is none.  Counts as an attempt.
    """

    def __init__(self, delay: Seconds | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)  # from these a copy is made in another process
        self.delay = delay
        self.delay_ms = None if delay is None else parse_duration(delay, "delay")
        self.reason = str(reason)

    def __str__(self) -> str:
        return self.reason

    def _value(self) -> tuple[object, ...]:
        return self.delay_ms, self.reason


class Snooze(Planned):
    """
    Not now: run again after *delay*.  Does not count as an attempt.
    """

    def __init__(self, delay: Seconds) -> None:
        super().__init__(delay)
        self.delay = delay
        self.delay_ms = parse_duration(delay, "delay")
        if not self.delay_ms:
            raise UsageError("snooze for more than zero: what is not counted would run without end")

    def _value(self) -> tuple[object, ...]:
        return (self.delay_ms,)


class Bury(Planned):
    """
    Never run again: the job is dead, with this reason.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)

    def _value(self) -> tuple[object, ...]:
        return (self.reason,)


class Unstorable(Exception):
    """
    A handler returned what cannot be stored, and no further run mends that.
    """

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


@dataclass(frozen=True, slots=True)
class Raised:
    """
    What a handler raised, to tell it from an exception that it returned as a value.
    """

    exc: BaseException


class Ack(msgspec.Struct, frozen=True, gc=False):
    """
    The attempt succeeded.
    """

    result: bytes


class RetryLater(msgspec.Struct, frozen=True, gc=False):
    """
    The job runs again, not before the delay is over.
    """

    delay_ms: int
    error: bytes
    signature: str
    counted: bool  #: whether this run counts towards max_attempts


class Buried(msgspec.Struct, frozen=True, gc=False):
    """
    The job is dead.
    """

    error: bytes
    signature: str


Outcome: TypeAlias = Ack | RetryLater | Buried


def outcome_of(
    answer: object,
    *,
    attempt: int,
    max_attempts: int,
    backoff: Backoff | None,
    encode_result: Callable[[object], bytes],
    traceback: bool = False,
) -> Outcome:
    """
    Map what a handler returned, or raised, to the next step of its job.

    The attempt counts from 1.  A result that cannot be stored buries the job: the work was done, and to
    repeat it would give the same.
    """
    if not isinstance(answer, (Raised, Planned)):
        try:
            return Ack(encode_result(answer))
        except Exception as error:  # noqa: BLE001  # encoders are users' code, too
            return Buried(error_document(error, traceback=traceback), signature(error))
        except BaseException as error:  # noqa: BLE001  # whatever it is, the job must not be lost with it
            answer = Raised(error)

    ending = answer.exc if isinstance(answer, Raised) else answer
    match ending:
        case Snooze():
            return RetryLater(
                ending.delay_ms, *_told("snoozed", "", ending, traceback=traceback), counted=False
            )
        case Bury(reason=reason):
            return Buried(*_told("buried", reason, ending, traceback=traceback))
        case Unstorable(why=why):
            return Buried(error_document(why, traceback=traceback), signature(why))
        case Retry(reason=reason):
            told = _told("retry", reason, ending, traceback=traceback)
        case _:
            told = error_document(ending, traceback=traceback), signature(ending)

    if attempt >= max_attempts:
        return Buried(*told)
    asked = ending.delay_ms if isinstance(ending, Retry) else None
    wait = delay_ms(DEFAULT if backoff is None else backoff, attempt) if asked is None else asked
    return RetryLater(wait, *told, counted=True)


def _told(word: str, reason: str, ending: Planned, *, traceback: bool) -> tuple[bytes, str]:
    """
    Describe a planned ending: by its reason, or by the exception it was raised over.
    """
    cause = cause_of(ending)
    if cause is not None and not reason:
        return error_document(cause, traceback=traceback), signature(cause)
    return reason_document(word, reason), signature_of(word, reason)


def cause_of(ending: Planned) -> BaseException | None:
    """
    The exception that a planned ending was raised over, None if there is none.
    """
    return ending.__cause__ or (None if ending.__suppress_context__ else ending.__context__)
