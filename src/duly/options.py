"""
The options of a job, described once: packing, HTTP, commands, Spark, filters and the reference read this.

Three classes spell them again, for type checkers: `duly.newjob.Options`, `duly.newjob.NewJob`, and
`duly.codec.Envelope` for those that travel in it.  tests/unit/test_options.py compares all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from duly.allowlist import check_callback
from duly.backoff import from_wire, to_wire
from duly.codec import DEFAULT_CODEC, Unreadable, decode, encode, is_same
from duly.durations import MAX_DUE_MS, Seconds, parse_duration, parse_time, say_time
from duly.errors import UsageError
from duly.job import OnConflict, Priority, check_topic, moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.codec import Envelope
    from duly.job import Job, Order
    from duly.newjob import Limits

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

# -- checks -----------------------------------------------------------------------------------------------


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


def _since_epoch(time: datetime, what: str) -> timedelta:
    if not isinstance(time, datetime):
        raise UsageError(
            f"{what} must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(minutes=5), "
            f"not {time!r}"
        )
    try:
        return time - _EPOCH
    except TypeError:
        raise UsageError(
            f"{what}={time!r} has no time zone; say datetime(…, tzinfo=UTC) or .astimezone()"
        ) from None


def positive_ms(wait: Seconds, what: str) -> int:
    """
    Return a length of time in milliseconds.

    Raises:
        UsageError: It is not more than zero.
    """
    ms = parse_duration(wait, what)
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


def _deadline_ms(expires: datetime, option: Option, _: Limits) -> int:
    # Rounded down: what must not start later must not start a part of a millisecond later.
    return min(max(_since_epoch(expires, option.name) // _MS, 1), MAX_DUE_MS)


def _positive_ms(wait: Seconds, option: Option, _: Limits) -> int:
    return positive_ms(wait, option.name)


def _seconds(wait: Seconds, option: Option, _: Limits) -> int:
    return -(-parse_duration(wait, option.name) // 1_000)


def _count(number: int, option: Option, _: Limits) -> int:
    return at_least_one(number, option.name, option.most)


def _object(value: object, option: Option, limits: Limits) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"{option.name} must be a dict with str keys, not {value!r}")
    try:
        read = decode(encode(value, what=option.name, limit=limits.context))
    except UsageError as error:
        if "has no form in JSON" not in str(error):
            raise
        # No annotation says how to read it, so the app's codec is not asked.
        raise UsageError(f"{error}; it holds what JSON has, and no types of app.codec") from None
    except Unreadable as error:  # the stack of this process ended in between
        raise UsageError(f"{option.name} cannot be read again: {error}") from None
    for name, given in value.items():
        if not is_same(given, read[name], DEFAULT_CODEC, alternatives=()):
            raise UsageError(
                f"{option.name} must hold what JSON has, and {name!r} would arrive as something else; "
                "write it as text, a number, a list or a dict"
            )
    return value or None


def _as_it_is(value: Any, _: Option, __: Limits) -> Any:
    return value


def _name(name: str, option: Option, _: Limits) -> str:
    return check_topic(name, option.name)


# -- kinds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kind:
    """
    How the values of an option are written outside of Python, checked, and kept.
    """

    json: Any  #: its type in JSON
    how: str = ""  #: how to write it
    column: str = ""  #: the types of a column that Spark writes
    sql: str = "string"  #: the type of a column that Spark reads
    compared: str = "text"  #: how filters compare it
    told: Any = None  #: its type in the document of a job, if that is another
    read: Callable[[Any, str], Any] | None = None  #: makes what Python takes of what JSON or a column says
    pack: Callable[[Any, Option, Limits], Any]  #: checks what Python takes and makes what is kept of it


def _read_duration(value: object, what: str) -> int | timedelta:
    if type(value) is int:  # as nearly all that is sent, and packing checks it
        return value
    return timedelta(milliseconds=parse_duration(value, what))


def _read_time(value: Any, what: str) -> datetime:
    found: datetime = parse_time(value, what) if isinstance(value, str) else value
    return found


_SPAN: Any = {
    "json": float | str,
    "how": "seconds, 1h30m or PT1H30M",
    "column": "number of seconds, string or interval",
    "sql": "long",
    "compared": "duration",
    "told": float,
    "read": _read_duration,
}
DURATION = Kind(**_SPAN, pack=_seconds)  #: zero or more
POSITIVE_DURATION = Kind(**_SPAN, pack=_positive_ms)
TIME = Kind(
    json=str,
    how="RFC 3339 with an offset",
    column="timestamp, or string with an offset",
    compared="time",
    read=_read_time,
    pack=_deadline_ms,
)
_SPANS = (DURATION, POSITIVE_DURATION)
COUNT = Kind(json=int, column="integer", sql="int", compared="number", pack=_count)
WORD = Kind(json=str, column="string", pack=_as_it_is)
ID = Kind(json=str, column="string or integer", pack=_as_it_is)
NAME = Kind(json=str, column="string", pack=_name)
URL = Kind(json=str, column="string", pack=lambda url, _, limits: check_callback(url, limits.callbacks))
OBJECT = Kind(json=dict[str, Any], column="string of a JSON object, or struct, map", pack=_object)
BACKOFF = Kind(
    json=dict[str, Any],
    how='e.g. {"kind": "fixed", "delay": 5}',
    read=lambda value, _: from_wire(value),
    pack=lambda backoff, _, __: to_wire(backoff),
)

# -- options ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """
    What may be said about a job beside its topic and payload.
    """

    name: str
    kind: Kind
    about: str
    example: Any  #: as JSON has it
    hint: str = ""
    default: Any = None
    words: tuple[str, ...] = ()
    most: int = 65_535  #: of a count
    kept: Literal["record", "envelope"] | None = None  #: None: in the job's key or place, or not at all
    field: str = ""  #: where it is kept: of `Order` and `Job`, or of `Envelope`; its name if not said
    document: bool = False  #: whether the job's document tells it, under its name
    flag: bool = True  #: whether `duly enqueue` takes it
    column: bool = True  #: whether Spark writes it
    filtered: bool = False  #: whether filters know it

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", self.field or self.name)

    @property
    def meaning(self) -> str:
        """
        What it is, and what else to know of it.
        """
        return f"{self.about}; {self.hint}" if self.hint else self.about

    @property
    def told(self) -> Any:
        """
        Its type in the job's document.
        """
        return (self.kind.told or self.kind.json) | None

    def read(self, value: Any) -> Any:
        """
        Make what Python takes of what JSON or a column says.

        Raises:
            UsageError: It cannot be read.
        """
        return value if value is None or self.kind.read is None else self.kind.read(value, self.name)

    def of(self, job: Job) -> Any:
        """
        What *job* keeps of it; None if it was not said.
        """
        return self.within(job, job.envelope)

    def within(self, job: Job | Order, envelope: Envelope | None) -> Any:
        """
        The same of an order, or of a job, beside its envelope.
        """
        found = getattr(envelope if self.kept == "envelope" else job, self.field, None)
        return found if found or self.kind is DURATION else None

    def write(self, kept: Any) -> Any:
        """
        What JSON says for what is kept.
        """
        if kept is not None and self.kind in _SPANS:
            # A number with the unit that its field is named for: exact, unlike a fraction.
            return f"{kept}{self.field.rpartition('_')[2]}"
        return self.tell(kept)

    def tell(self, kept: Any) -> Any:
        """
        What the job's document says for what is kept: the same that a request may say.
        """
        if kept and self.kind is TIME:
            return say_time(moment(kept))  # type: ignore[arg-type]  # it is one
        if kept and self.kind in _SPANS and self.field.endswith("_ms"):
            return kept // 1_000 if kept % 1_000 == 0 else kept / 1_000
        return kept

    def keep(self, told: Any) -> Any:
        """
        Return what is kept for what a document tells: the inverse of `tell`.
        """
        if told is None or self.kind not in (TIME, *_SPANS):
            return told
        if self.kind is TIME:
            return due_at_ms(parse_time(told, self.name))
        return round(told * 1_000) if self.field.endswith("_ms") else int(told)


#: In the order of a request's JSON.
OPTIONS = (
    Option("id", ID, "its name within the topic", "order-1", "default: a new one", document=True),
    Option(
        "delay", DURATION, "how long to wait, by the server's clock", "1h30m", "not with due_at", column=False
    ),
    Option("due_at", TIME, "when to run it", "2036-01-31T09:00:00Z", "at once if past", document=True),
    Option(
        "expires",
        TIME,
        "when it must not start any more",
        "2036-02-01T09:00:00Z",
        kept="record",
        field="expires_ms",
        document=True,
        column=False,
        filtered=True,
    ),
    Option(
        "ttr",
        POSITIVE_DURATION,
        "how long one run may take",
        "90s",
        "default: the handler's",
        kept="record",
        field="ttr_ms",
        document=True,
    ),
    Option(
        "max_attempts",
        COUNT,
        "how many runs it has at most",
        8,
        "default: the handler's",
        kept="envelope",
        document=True,
    ),
    Option(
        "max_crashes",
        COUNT,
        "how many of its runs may be lost with their worker, 3 at least",
        5,
        "default: the handler's",
        most=255,
        kept="record",
        flag=False,
        column=False,
    ),
    Option(
        "backoff",
        BACKOFF,
        "how long to wait between attempts",
        {"kind": "fixed", "delay": 5},
        "default: the handler's",
        kept="envelope",
        document=True,
        flag=False,
        column=False,
    ),
    Option(
        "context",
        OBJECT,
        "what travels with the job",
        {"tenant": "acme"},
        kept="envelope",
        document=True,
        filtered=True,
    ),
    Option(
        "priority",
        WORD,
        "which due jobs of its topic run first",
        "high",
        "high, normal or low",
        default="normal",
        words=get_args(Priority),
        document=True,
    ),
    Option(
        "on_conflict",
        WORD,
        "what to do if there is a job with this id",
        "replace",
        "keep, replace or raise",
        default="keep",
        words=get_args(OnConflict),
        column=False,
    ),
    Option(
        "retain",
        DURATION,
        "how long to keep it once it has ended",
        "1d",
        "a minute at least; 0: neither payload nor result; default: the namespace's",
        kept="record",
        field="retain_s",
        document=True,
        column=False,
    ),
    Option(
        "callback",
        URL,
        "a URL that the job is sent to",
        "https://example.com/hook",
        "no handler runs it",
        kept="envelope",
        document=True,
    ),
    Option(
        "reply_to",
        NAME,
        "a queue of replies, which is told when the job has ended",
        "billing.replies",
        kept="envelope",
        document=True,
    ),
)

IN_RECORD = tuple(option for option in OPTIONS if option.kept == "record")
IN_ENVELOPE = tuple(option for option in OPTIONS if option.kept == "envelope")
#: What a document tells of them; objects last, beside the payload.
TOLD = tuple(
    sorted(
        (option for option in OPTIONS if option.kept and option.document),
        key=lambda option: option.kind is OBJECT,
    )
)
#: What rows of Spark may carry beside their own id, due_at, payload, topic and priority.
CARRIED = tuple(option for option in OPTIONS if option.kept and option.column)


def fields(type_of: Callable[[Option], Any]) -> list[tuple[str, Any, Any]]:
    """
    The fields of a struct that options are read into; those without a default may be null.
    """
    return [
        (each.name, type_of(each) | None if each.default is None else type_of(each), each.default)
        for each in OPTIONS
    ]
