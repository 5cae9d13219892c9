"""
Lengths of time and moments as people write them: 90, 90s, 1h30m, PT1H30M; 2026-01-01T09:00:00+01:00.

A length of time is seconds, a timedelta or text wherever one is asked for: in Python, in settings, over HTTP,
in columns of Spark and on the command line.  It counts to the microsecond, and is rounded up to the
millisecond, so that nothing starts before it was asked to.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from duly.errors import UsageError

Seconds: TypeAlias = float | timedelta | str  #: what users write for a length of time: 90, or "1m30s"

MAX_DUE_MS = 253_402_300_799_999  #: the last millisecond of the year 9999
MAX_WAIT_MS = MAX_DUE_MS - 4_102_444_800_000  #: stays within the year 9999 when begun before 2100

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # in UTC, as every time that is told

MAX_TEXT = 200  #: characters of a duration

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN = re.compile(_NUMBER)
_PARTS = re.compile(rf"(?:{_NUMBER} ?(?:ms|[smhdw]) ?)+")
_PART = re.compile(rf"({_NUMBER}) ?(ms|[smhdw])")
#: Of ISO 8601, what has a fixed length; the seconds, or whatever comes last, may have a fraction.
_ISO = re.compile(
    rf"P(?:(?P<w>{_NUMBER})W)?(?:(?P<d>{_NUMBER})D)?"
    rf"(?P<time>T(?:(?P<h>{_NUMBER})H)?(?:(?P<m>{_NUMBER})M)?(?:(?P<s>{_NUMBER})S)?)?"
)
_ISO_CALENDAR = re.compile(rf"P(?:{_NUMBER}[YM])+.*")
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)


def parse_duration(value: object, what: str = "") -> int:
    """
    Return milliseconds, rounded up, of a number of seconds, a timedelta, or text: 90, 1.5s, 1h30m, PT1H30M.

    Raises:
        UsageError: It is none of these, negative, or longer than a calendar; *what* names it.
    """
    if type(value) is int and 0 <= value <= MAX_WAIT_MS // 1_000:  # by far the most, and asked of every job
        return value * 1_000
    if isinstance(value, str):
        return _parse_text(value, what)
    if isinstance(value, timedelta):
        ms = value.days * 86_400_000 + value.seconds * 1_000 - (-value.microseconds // 1_000)
        if value.days >= 0 and ms <= MAX_WAIT_MS:
            return ms
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(
            f"{what or 'a duration'} must be seconds, a timedelta or text like 1h30m, not {value!r}"
        )
    elif 0 <= value <= MAX_WAIT_MS / 1_000:  # false for NaN
        return value * 1_000 if isinstance(value, int) else -(-round(value * 1_000_000) // 1_000)
    raise UsageError(f"{_named(value, what)} must be zero or more and end before the year 10000")


def parse_timeout(value: Seconds | None, what: str = "timeout") -> float | None:
    """
    Return for how many seconds to wait at most, None for ever.

    A number or timedelta below zero is what is left of a time that is over: there is nothing to wait for.

    Raises:
        UsageError: It is no length of time.
    """
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        return 0.0
    if isinstance(value, timedelta) and value.days < 0:
        return 0.0
    return parse_duration(value, what) / 1_000


def _parse_text(value: str, what: str) -> int:
    text = value.strip()
    if len(text) > MAX_TEXT:
        raise UsageError(
            f"{what or 'a duration'} must be text of at most {MAX_TEXT} characters, not {len(text)}"
        )
    if _PLAIN.fullmatch(text):
        exact = Fraction(text) * 1_000
    elif _PARTS.fullmatch(text):
        exact = _sum(value, what, [(unit, number) for number, unit in _PART.findall(text)])
    elif (iso := _ISO.fullmatch(text.upper())) and any(iso[unit] for unit in "wdhms"):
        # A T that nothing follows is a slip of the pen.
        if iso["time"] == "T":
            raise _no_duration(value, what)
        exact = _sum(value, what, [(unit, iso[unit]) for unit in "wdhms" if iso[unit]])
    elif _ISO_CALENDAR.fullmatch(text.upper()):
        raise UsageError(
            f"{_named(value, what)} has years or months, which have no fixed length; "
            "write days: P365D or 365d"
        )
    else:
        raise _no_duration(value, what)
    if exact > MAX_WAIT_MS:
        raise UsageError(f"{_named(value, what)} must end before the year 10000")
    return math.ceil(exact)


def _sum(value: str, what: str, parts: list[tuple[str, str]]) -> Fraction:
    units = [unit for unit, _ in parts]
    if units != sorted(set(units), key=_UNITS_MS.__getitem__, reverse=True):
        raise UsageError(
            f"{_named(value, what)} is no duration: name each unit once, the longest first, as in 1d12h30m"
        )
    return sum((Fraction(number) * _UNITS_MS[unit] for unit, number in parts), Fraction())


def _no_duration(value: str, what: str) -> UsageError:
    return UsageError(
        f"{_named(value, what)} is no duration; write 500ms, 15s, 1h30m, 14d, PT1H30M or seconds"
    )


def _named(value: object, what: str) -> str:
    return f"{what}={value!r}" if what else repr(value)


def parse_time(text: str, what: str = "") -> datetime:
    """
    Return the moment that an RFC 3339 text names, in UTC; a part of a microsecond is rounded up.

    Raises:
        UsageError: It names none, or has no offset.
    """
    said = f"{what}: {text!r}" if what else repr(text)
    match = _RFC_3339.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{said} is no time; write 2026-01-31T09:00:00Z or …T10:00:00+01:00")
    date, clock, fraction, offset = match.groups()
    if offset is None:
        raise UsageError(
            f"{said} has no offset from UTC, so it could mean many moments; "
            f"write {date}T{clock}Z or {date}T{clock}+01:00"
        )
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{offset.upper()}").astimezone(UTC)
        return moment + timedelta(microseconds=math.ceil(Fraction(fraction or 0) * 1_000_000))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{said} is no time: {error}") from None


def say_duration(ms: float) -> str:
    """
    A length of time as people say it, in its two largest units: 350ms, 12s, 1h30m, 14d.
    """
    if ms < 1_000:
        return f"{round(ms)}ms"
    left, said = round(ms / 1_000), ""
    for unit in ("d", "h", "m", "s"):
        size = _UNITS_MS[unit] // 1_000
        count, left = divmod(left, size)
        if count:
            said += f"{count}{unit}"
        if said and (count == 0 or len(re.findall("[dhms]", said)) == 2):
            break
    return said


def say_time(moment: datetime) -> str:
    """
    A moment in RFC 3339, in UTC, to the millisecond.
    """
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def say_ms(ms: int | None) -> str | None:
    """
    The same of integer milliseconds; None for never, which is 0 or None.
    """
    return f"{_second(ms // 1_000)}.{ms % 1_000:03d}Z" if ms else None


@lru_cache(maxsize=4_096)
def _second(s: int) -> str:
    return (_EPOCH + timedelta(seconds=s)).isoformat()
