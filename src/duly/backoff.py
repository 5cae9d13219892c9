"""
How long to wait before the next attempt.  Pure: no clock, no I/O.

A wait is seconds, a timedelta or text such as "1m30s", see `duly.durations`.
"""

from __future__ import annotations

import logging
import math
import random as _random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from duly.durations import Seconds, parse_duration
from duly.errors import UsageError

log = logging.getLogger(__name__)


def _seconds(wait: Seconds, what: str) -> float:
    """
    Check *wait* and return it as a plain number, so that equal waits compare equal.
    """
    ms = parse_duration(wait, what)
    return ms // 1_000 if ms % 1_000 == 0 else ms / 1_000


def _check_number(what: str, number: float, least: float, most: float) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= most:
        raise UsageError(f"{what}={number!r} must be a number from {least} to {most}")


@dataclass(frozen=True, slots=True)
class Fixed:
    """
    Wait the same time before every attempt.
    """

    delay: Seconds

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", _seconds(self.delay, "delay"))


@dataclass(frozen=True, slots=True)
class Exponential:
    """
    Wait *factor* times longer before every further attempt, up to *cap*.

    Jitter spreads jobs that failed together.  It only adds: up to that share of
    the wait, also on top of *cap*.
    """

    base: Seconds = 2
    cap: Seconds = 300
    factor: float = 2.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        base, cap = _seconds(self.base, "base"), _seconds(self.cap, "cap")
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "cap", cap)
        _check_number("factor", self.factor, 1, 1_000)
        _check_number("jitter", self.jitter, 0, 1)
        if cap < base:
            raise UsageError(f"cap={cap} is shorter than the first wait, base={base}")


@dataclass(frozen=True, slots=True)
class Intervals:
    """
    Wait as listed, attempt by attempt; the last one repeats.
    """

    delays: Sequence[Seconds]

    def __post_init__(self) -> None:
        if isinstance(self.delays, str | bytes) or not isinstance(self.delays, Sequence) or not self.delays:
            raise UsageError(f"intervals must be a list of at least one wait, not {self.delays!r}")
        object.__setattr__(self, "delays", tuple(_seconds(delay, "interval") for delay in self.delays))


Backoff: TypeAlias = Fixed | Exponential | Intervals | Callable[[int], Seconds]

DEFAULT = Exponential()


def check_backoff(backoff: object) -> None:
    """
    Accept one of the three kinds or a callable.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(backoff, type) or not (
        isinstance(backoff, Fixed | Exponential | Intervals) or callable(backoff)
    ):
        raise UsageError(
            "backoff must be Fixed(…), Exponential(…), Intervals([…]) or a function of the attempt, "
            f"not {backoff!r}"
        )


def delay_ms(backoff: Backoff, attempt: int, random: Callable[[], float] = _random.random) -> int:
    """
    Return how long to wait after the given attempt, which counts from 1.

    A callable that raises or answers nonsense must not cost the job: the default takes its place.
    """
    match backoff:
        case Fixed(delay=delay):
            return parse_duration(delay)
        case Intervals(delays=delays):
            return parse_duration(delays[min(max(attempt, 1), len(delays)) - 1])
        case Exponential():
            return _exponential_ms(backoff, attempt, random)
    try:
        return parse_duration(backoff(attempt), "the backoff's answer")
    except BaseException as error:  # noqa: BLE001  # a user's function: anything may come out of it
        name = getattr(backoff, "__qualname__", repr(backoff))
        log.warning("backoff %s failed for attempt %d, using %s: %r", name, attempt, DEFAULT, error)
        return _exponential_ms(DEFAULT, attempt, random)


def _exponential_ms(backoff: Exponential, attempt: int, random: Callable[[], float]) -> int:
    base, cap = parse_duration(backoff.base), parse_duration(backoff.cap)
    try:
        asked = min(cap, math.ceil(base * float(backoff.factor) ** (max(attempt, 1) - 1)))
    except OverflowError:
        asked = cap if base else 0
    return asked + int(asked * backoff.jitter * random())


def to_wire(backoff: Backoff) -> dict[str, Any]:
    """
    Describe a backoff in JSON words, to travel with a job.

    Raises:
        UsageError: It is a callable: code does not travel.
    """
    match backoff:
        case Fixed(delay=delay):
            return {"kind": "fixed", "delay": delay}
        case Exponential(base=base, cap=cap, factor=factor, jitter=jitter):
            return {"kind": "exponential", "base": base, "cap": cap, "factor": factor, "jitter": jitter}
        case Intervals(delays=delays):
            return {"kind": "intervals", "delays": list(delays)}
    check_backoff(backoff)
    raise UsageError(
        f"backoff {backoff!r} is a function and cannot travel with a job; put it on the handler instead"
    )


def from_wire(words: dict[str, Any]) -> Backoff:
    """
    Read a backoff that `to_wire` described.

    Raises:
        UsageError: It does not describe one.
    """
    kinds = {"fixed": Fixed, "exponential": Exponential, "intervals": Intervals}
    kind = words.get("kind") if isinstance(words, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise UsageError(f"backoff must be an object whose kind is one of {', '.join(kinds)}, not {words!r}")
    rest = {name: value for name, value in words.items() if name != "kind"}
    try:
        backoff: Backoff = kinds[kind](**rest)
    except TypeError as error:
        raise UsageError(f"backoff {words!r} does not fit its kind: {error}") from error
    return backoff
