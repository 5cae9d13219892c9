"""
How values are written over HTTP: what is checked is what the description says.

Patterns are of the kind that Python, JavaScript and JSON Schema read alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from duly import options
from duly.durations import MAX_WAIT_MS
from duly.job import TOPIC
from duly.urls import MAX_URL

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.options import Kind, Option

MAX_WAIT_S = MAX_WAIT_MS // 1_000

#: A topic.
TOPIC_PATTERN = f"^{TOPIC.pattern}$"

#: An id; `.` and `..` would mean another place in a path.
ID_PATTERN = r"^(?:\.{0,2}[A-Za-z0-9_~:@=+-]|\.{3})[A-Za-z0-9._~:@=+-]*$"

#: Where a list goes on.
CURSOR_PATTERN = "^[A-Za-z0-9_-]+$"

# So many digits that no sum of them passes the end of the calendar.
_FRACTION = r"(?:\.[0-9]{1,9})?"
_UNITS = [
    rf"[0-9]{{1,{digits}}}{_FRACTION} ?{unit}"
    for digits, unit in [(5, "w"), (6, "d"), (7, "h"), (8, "m"), (10, "s"), (12, "ms")]
]
_ISO_DATE = [rf"[0-9]{{1,{digits}}}{_FRACTION}{unit}" for digits, unit in [(5, "W"), (6, "D")]]
_ISO_TIME = [rf"[0-9]{{1,{digits}}}{_FRACTION}{unit}" for digits, unit in [(7, "H"), (8, "M"), (10, "S")]]


def _some(parts: list[str], between: str = "") -> str:
    """
    One or more of *parts*, in their order.
    """
    ways = [
        first + "".join(f"(?:{between}{part})?" for part in parts[at + 1 :]) for at, first in enumerate(parts)
    ]
    return f"(?:{'|'.join(ways)})"


_PARTS = _some(_UNITS, " ?")
_TIME = f"T{_some(_ISO_TIME)}"
_ISO = f"P(?:{_some(_ISO_DATE)}(?:{_TIME})?|{_TIME})"

#: Seconds, units from the longest to the shortest, or what has a fixed length of ISO 8601.
DURATION_PATTERN = rf"^(?:[0-9]{{1,11}}{_FRACTION}|{_PARTS}|{_ISO})$"
#: The same, with a digit that is not 0.
POSITIVE_PATTERN = rf"^(?=.*[1-9]){DURATION_PATTERN[1:]}"

#: RFC 3339, from 1970 on, with an offset.
TIME_PATTERN = (
    r"^(?:19[7-9][0-9]|[2-9][0-9]{3})-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])[Tt]"
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$"
)

#: Where a callback goes, for readers of the description: it is `duly.urls` that reads one, as in Python.
_URL: dict[str, Any] = {"pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s#]+$", "maxLength": MAX_URL}

_WRITE_DURATION = "write seconds, 500ms, 15s, 1h30m, 14d or PT1H30M; years and months have no fixed length"

#: What to say about a text that does not fit.
ADVICE = {
    TOPIC_PATTERN: "use 1 to 100 of the characters A-Z a-z 0-9 . _ - and begin with a letter or a digit",
    ID_PATTERN: "use 1 to 200 of the characters A-Z a-z 0-9 . _ ~ : @ = + - (and neither '.' nor '..')",
    DURATION_PATTERN: _WRITE_DURATION,
    POSITIVE_PATTERN: f"must be more than zero; {_WRITE_DURATION}",
    CURSOR_PATTERN: "write the one that the call before gave",
    TIME_PATTERN: "write a time with its offset from UTC: 2026-01-31T09:00:00Z or 2026-01-31T10:00:00+01:00",
}

Seconds = Annotated[float, Meta(ge=0, le=MAX_WAIT_S)]
PositiveSeconds = Annotated[float, Meta(ge=0.001, le=MAX_WAIT_S)]

DurationText = Annotated[
    str, Meta(pattern=DURATION_PATTERN, description="90, 90s, 1m30s or PT1M30S", examples=["PT1M30S"])
]
Duration = Seconds | DurationText
PositiveDuration = (
    PositiveSeconds
    | Annotated[
        str, Meta(pattern=POSITIVE_PATTERN, description="90, 90s, 1m30s or PT1M30S", examples=["PT1M30S"])
    ]
)
Time = Annotated[
    str,
    Meta(
        pattern=TIME_PATTERN,
        description="RFC 3339, with an offset",
        examples=["2036-01-31T09:00:00Z"],
        extra_json_schema={"format": "date-time"},
    ),
]

Url = Annotated[str, Meta(extra_json_schema=_URL)]

#: The type of each kind of option in a request.
TYPES: dict[Kind, Callable[[Option], Any]] = {
    options.DURATION: lambda _: Duration,
    options.POSITIVE_DURATION: lambda _: PositiveDuration,
    options.TIME: lambda _: Time,
    options.COUNT: lambda option: Annotated[int, Meta(ge=1, le=option.most)],
    options.WORD: lambda option: Literal[option.words],
    options.OBJECT: lambda option: option.kind.json,
    options.ID: lambda option: Annotated[
        str, Meta(pattern=ID_PATTERN, min_length=1, max_length=200, examples=[option.example])
    ],
    options.NAME: lambda option: Annotated[
        str,
        Meta(
            pattern=TOPIC_PATTERN,
            min_length=1,
            max_length=100,
            description=option.about,
            examples=[option.example],
        ),
    ],
    options.URL: lambda option: Annotated[
        str,
        Meta(description=option.about, examples=[option.example], extra_json_schema=_URL),
    ],
}
