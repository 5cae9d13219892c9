"""
Lengths of time and moments as people write them: 90, 90s, 1h30m, PT1H30M; 2026-01-01T09:00:00+01:00.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from duly.backoff import MAX_WAIT_MS, wait_ms
from duly.errors import UsageError

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


def parse_duration(value: object, what: str = "duration") -> int:
    """
    Return milliseconds, rounded up, of a number of seconds, a timedelta, or text: 90, 1.5s, 1h30m, PT1H30M.

    Raises:
        UsageError: It is none of these, or longer than a calendar.
    """
    if not isinstance(value, str):
        return wait_ms(value, what)  # type: ignore[arg-type]  # it checks
    text = value.strip()
    if _PLAIN.fullmatch(text):
        exact = Fraction(text) * 1_000
    elif _PARTS.fullmatch(text):
        exact = _sum(value, [(unit, number) for number, unit in _PART.findall(text)])
    elif (iso := _ISO.fullmatch(text.upper())) and any(iso[unit] for unit in "wdhms"):
        # A T that nothing follows is a slip of the pen.
        if iso["time"] == "T":
            raise _no_duration(value)
        exact = _sum(value, [(unit, iso[unit]) for unit in "wdhms" if iso[unit]])
    elif _ISO_CALENDAR.fullmatch(text.upper()):
        raise UsageError(
            f"{value!r} has years or months, which have no fixed length; write days: P365D or 365d"
        )
    else:
        raise _no_duration(value)
    if exact > MAX_WAIT_MS:
        raise UsageError(f"{what}={value!r} must end before the year 10000")
    return math.ceil(exact)


def _sum(value: str, parts: list[tuple[str, str]]) -> Fraction:
    units = [unit for unit, _ in parts]
    if units != sorted(set(units), key=_UNITS_MS.__getitem__, reverse=True):
        raise UsageError(f"{value!r} is no duration: name each unit once, the longest first, as in 1d12h30m")
    return sum((Fraction(number) * _UNITS_MS[unit] for unit, number in parts), Fraction())


def _no_duration(value: str) -> UsageError:
    return UsageError(f"{value!r} is no duration; write 500ms, 15s, 1h30m, 14d, PT1H30M or seconds")


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
