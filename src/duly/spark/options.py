"""
What may be said to the format `duly`, read on the driver before anything begins.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from duly.allowlist import parse_allow
from duly.defaults import DEFAULTS, HOUR_MS
from duly.durations import parse_duration
from duly.errors import UsageError
from duly.ids import new_id
from duly.job import JobState, OnConflict, check_topic
from duly.newjob import Limits
from duly.options import at_least_one
from duly.settings import Settings
from duly.testrun import TEST_RUN

if TYPE_CHECKING:
    from collections.abc import Mapping

_YES, _NO = {"true", "1", "yes"}, {"false", "0", "no"}
_STATES = {state.name for state in JobState}


def _option(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueOptions:
    """
    Which queue.
    """

    url: str = field(
        repr=False, metadata={"about": "the queue's server, redis://…; else DULY_URL or duly.toml"}
    )
    namespace: str = _option("duly", "begins every key of the queue")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanOptions(QueueOptions):
    """
    What `spark.read.format("duly")` takes.
    """

    state: tuple[str, ...] = _option((), "only jobs in these states, by commas; filters are pushed down, too")
    topic: tuple[str, ...] = _option((), "only jobs of these topics, by commas; filters are pushed down, too")
    ranges: int = _option(4, "how many tasks read one shard, where it has jobs enough")
    page: int = _option(1_000, "how many jobs one call looks at, 10,000 at most")
    max_attempts: int = _option(
        DEFAULTS.max_attempts, "of jobs that say none themselves; else DULY_MAX_ATTEMPTS or duly.toml"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions(QueueOptions):
    """
    What `df.write.format("duly")` and `df.writeStream.format("duly")` take.
    """

    topic: str | None = _option(None, "of rows whose column `topic` is null or missing")
    on_conflict: OnConflict = field(
        default="keep",
        metadata={"about": "where the id is taken: keep, replace, or raise to reject the row"},
    )
    rejects: str = _option(
        "fail",
        "a folder (path or URI that executors can write to) for rows that were not accepted; "
        "`fail`: the first such row ends the write",
    )
    record: str = field(
        default="",
        repr=False,
        metadata={
            "about": "the queue's database of record, if it has one: rows are promised there first; "
            "else DULY_RECORD or duly.toml"
        },
    )
    record_schema: str = _option(
        "", "of PostgreSQL, where the record's tables are; else DULY_RECORD_SCHEMA or duly.toml"
    )
    horizon_ms: int = _option(
        24 * HOUR_MS,
        "with a record: what is due later than so far from now waits there, e.g. 12h; else DULY_HORIZON",
    )
    rate: float = _option(0.0, "at most this many jobs a second, of all tasks together; 0: no bound")
    plan: bool = _option(False, "only say what would become of each row; nothing is changed")  # noqa: FBT003  # its default
    report: str = _option("", "a file on the driver's machine that gets the counts as JSON")
    name: str = _option("schedule", "under which `duly stats` shows the last run")
    run: str = _option("", "tells this run from others; made up unless given")
    payload_limit: int = _option(Limits().payload, "of one job, in bytes")
    context_limit: int = _option(Limits().context, "of one job, in bytes")
    callback_allow: str = _option(
        "", "networks and hosts that callbacks may go to, beside public ones; else DULY_CALLBACK_ALLOW"
    )

    @property
    def limits(self) -> Limits:
        """
        How large what travels may be.
        """
        return Limits(
            payload=self.payload_limit,
            context=self.context_limit,
            callbacks=parse_allow(self.callback_allow),
        )


T = TypeVar("T", bound=QueueOptions)


def read_options(kind: type[T], given: Mapping[str, str]) -> T:
    """
    Read options by their names, whatever their case; unknown ones are errors.

    Raises:
        UsageError: An option is unknown, missing or wrong.
    """
    known = {key_of(each.name): each for each in fields(kind)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        key = name.lower()
        # Spark puts the argument of load() and save() among the options.
        if key == "path":
            raise UsageError(
                "format duly has no path: say the queue by option url, and call load() or save() without one"
            )
        # What Spark itself gives to the sink of a stream.
        if key in {"checkpointlocation", "queryname"}:
            continue
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise UsageError(
                f"unknown option {name}; "
                + (f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")
            )
        field_ = known[key]
        read = _duration if key != field_.name else _READERS.get(str(field_.type), _text)
        values[field_.name] = read(key, text)
    url, namespace, record = (values.get(name) for name in ("url", "namespace", "record"))
    settings = Settings.load(
        url=url, namespace=namespace, record=record, record_schema=values.get("record_schema")
    )
    if url is None and settings.url is not None:
        TEST_RUN.check(settings)
    if settings.url is None:
        raise UsageError('say which queue: option("url", "redis://host:6379/0"), or DULY_URL')
    if settings.remote:
        raise UsageError(
            "Spark speaks to the queue's own server: say redis://…, not the URL of an HTTP service"
        )
    values |= {"url": settings.url, "namespace": settings.namespace}
    if kind is ScanOptions:
        values.setdefault("max_attempts", settings.max_attempts)
    if kind is WriteOptions:
        values["record"] = settings.record_url or ""
        values["record_schema"] = settings.record_schema or ""
        values.setdefault("horizon_ms", settings.horizon_ms)
        values.setdefault("callback_allow", settings.callback_allow)
    return _checked(kind(**values))


def _checked(options: T) -> T:
    match options:
        case WriteOptions():
            if options.topic is not None:
                check_topic(options.topic)
            if options.on_conflict not in get_args(OnConflict):
                raise UsageError(f"on_conflict={options.on_conflict!r} must be keep, replace or raise")
            if not options.rejects:
                raise UsageError("rejects is empty: say a folder, or fail")
            if options.horizon_ms < 1_000:
                raise UsageError(f"horizon={options.horizon_ms}ms must be 1s or more")
            if not options.run:
                object.__setattr__(options, "run", new_id())
        case ScanOptions():
            if wrong := set(options.state) - _STATES:
                raise UsageError(f"no state {min(wrong)!r}; states are {', '.join(s.name for s in JobState)}")
            for topic in options.topic:
                check_topic(topic)
            at_least_one(options.max_attempts, "max_attempts")
            if not 1 <= options.page <= 10_000:
                raise UsageError(f"page={options.page} must be from 1 to 10000")
            if not 1 <= options.ranges <= 64:
                raise UsageError(f"ranges={options.ranges} must be from 1 to 64")
    return options


def key_of(name: str) -> str:
    """
    How an option is called that fills the field *name*: a length of time has its unit in the value.
    """
    return name.removesuffix("_ms")


def _duration(name: str, text: str) -> int:
    return parse_duration(text, name)


def _text(_name: str, text: str) -> str:
    return text


def _words(_name: str, text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name}={text!r} must be a number of 0 or more")
    return value


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{name}={text!r} must be a whole number of 0 or more")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise UsageError(f"{name}={text!r} must be true or false")
    return text.lower() in _YES


_READERS: dict[str, Any] = {"tuple[str, ...]": _words, "float": _number, "int": _whole, "bool": _flag}
