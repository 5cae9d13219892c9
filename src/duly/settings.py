"""
How a process of duly behaves.  Lowest to highest: the defaults here, duly.toml, DULY_*, flags.

A field in milliseconds is set by its name without the unit: `lease_ms` is
`lease = "15s"` in duly.toml, DULY_LEASE=15s in the environment, lease=15 as a flag.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import tomllib
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from duly import defaults
from duly.allowlist import parse_allow
from duly.backoff import Backoff, check_backoff, from_wire
from duly.defaults import DEFAULTS, HOUR_MS, Defaults
from duly.durations import parse_duration
from duly.errors import UsageError
from duly.newjob import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    RecordSource: TypeAlias = str | Engine | AsyncEngine
else:
    RecordSource = Any  # the fields are read at run time, where SQLAlchemy need not be installed

Durability: TypeAlias = Literal["always", "everysec"]
RecordAway: TypeAlias = Literal["work", "stop"]
Role: TypeAlias = Literal["auto", "leader", "follower"]

KIB = 1024
MIB = 1024 * KIB
BATCH_BYTES = 1 * MIB  #: in one script call

FILE = "duly.toml"  #: that is read in the working directory
#: Options of `duly serve` that are variables as well: what only the service needs to know.
SERVE_VARIABLES = frozenset(
    f"DULY_SERVE_{word}"
    for word in (
        "BATCH_LIMIT",
        "BODY_LIMIT",
        "BODY_RATE",
        "BODY_TIMEOUT",
        "BURST",
        "HEADER_LIMIT",
        "HEADER_TIMEOUT",
        "IDLE_TIMEOUT",
        "MAX_CONNECTIONS",
        "MAX_STREAM",
        "MAX_STREAMS",
        "MAX_WAIT",
        "PAGE_LIMIT",
        "RATE",
        "SPOOL_LIMIT",
        "SPOOL_TOTAL",
    )
)

#: Variables that begin with DULY_ and are read elsewhere.
OTHER_VARIABLES = frozenset({"DULY_API_KEYS", "DULY_CRASH_POINTS", "DULY_TESTS"}) | SERVE_VARIABLES

#: What Kubernetes sets in every pod for a Service whose name begins with "duly".
_SERVICE_LINK = re.compile(
    r"DULY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

log = logging.getLogger("duly.settings")

_warned: set[str] = set()  #: unknown variables, each told of once

FEWEST_CONNECTIONS = 3  #: to the record, at once

_POOL = (defaults.RECORD_POOL_SIZE, defaults.RECORD_MAX_OVERFLOW)
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,50}")
_API_KEY = re.compile(r"[\x21-\x7e]{1,1000}")
_SIZE = re.compile(r"([0-9]{1,18}) *(B|KiB|MiB|GiB)?")
_SIZE_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """
    Every setting, with its default.
    """

    # Where the jobs are
    url: str | None = field(
        default=None, repr=False
    )  #: the server, or an HTTP service; None starts one of our own (may hold a password)
    api_key: str | None = field(default=None, repr=False)  #: for an HTTP service; never printed
    require_keys: bool = False  #: `duly serve` refuses requests without an API key, also while there is none
    root_path: str = ""  #: where clients see `duly serve` behind a proxy: /queue; empty for /
    trusted_proxies: str = ""  #: addresses and networks by commas whose X-Forwarded-For `duly serve` believes
    idempotency_ms: int = 24 * HOUR_MS  #: how long an Idempotency-Key or an X-Async-Request-Id counts
    idempotency_bytes: int = 256 * MIB  #: how much is kept of such requests; further ones are refused
    data: Path = Path(".duly")  #: where our own server keeps its files
    durability: Durability = "always"  #: when our own server syncs to disk; everysec is the fast choice
    namespace: str = "duly"  #: begins every key; two namespaces never meet
    shards: int = 1  #: fixed when the namespace is created

    record: RecordSource | None = field(
        default=None, repr=False
    )  #: URL of a database that remembers what was promised (may hold a password); in Python also an engine
    record_schema: str | None = None  #: PostgreSQL schema of its tables; None means that of the search path
    record_pool_size: int = (
        defaults.RECORD_POOL_SIZE
    )  #: connections that a process keeps, to PostgreSQL and MariaDB
    record_max_overflow: int = defaults.RECORD_MAX_OVERFLOW  #: connections beyond that, closed after use
    record_listen: str | None = field(
        default=None, repr=False
    )  #: where the record is behind a pooler: a URL without it, to hear of commits (may hold a password)
    record_away: RecordAway = "work"  #: what goes on in Redis while the database cannot be reached
    horizon_ms: int = 24 * HOUR_MS  #: with a record: what is due later waits in the database

    # Who does what, and when
    concurrency: int = 16  #: how many jobs a worker runs at once
    role: Role = "auto"  #: whether this process competes for the timer's duty
    lease_ms: int = defaults.LEASE_MS  #: how long a worker may fall silent before its jobs are recovered
    timer_scan_ms: int = 1_000  #: looks for due jobs this often, whatever happens
    recover_scan_ms: int = 1_000  #: looks for expired leases this often
    block_ms: int = 1_000  #: how long an idle worker waits before it asks again
    socket_timeout_ms: int = 5_000  #: how long a call waits for the server, with all of its tries
    drain_grace_ms: int = 25_000  #: how long running jobs may go on after SIGTERM
    stall_ms: int = 60_000  #: a worker that makes no progress for so long exits

    # What holds for jobs that say nothing else, and whose handler does not
    max_attempts: int = DEFAULTS.max_attempts  #: how many runs a job has at most
    backoff: Backoff = (
        DEFAULTS.backoff
    )  #: how long to wait between attempts; text is JSON, as in `{"kind": "fixed", "delay": 5}`
    ttr_ms: int = DEFAULTS.ttr_ms  #: how long one run may take

    # Where jobs are POSTed to
    callback_secrets: str = field(
        default="", repr=False
    )  #: `whsec_…` by commas, all of which sign; one of some topics only is `mail.*:whsec_…`
    callback_allow: str = ""  #: hosts and networks, also for senders, open although private or not https
    callback_ca: Path | None = None  #: certificates to trust instead of the system's

    # How large things may be
    payload_limit: int = 256 * KIB  #: what a job is given
    result_limit: int = 256 * KIB  #: what its handler returns
    context_limit: int = 8 * KIB  #: what travels with it, and what it reports as progress

    # What is kept once it has ended
    keep_succeeded_ms: int = defaults.KEEP_SUCCEEDED_MS  #: how long, unless the job says; cancelled ones, too
    keep_succeeded_bytes: int = defaults.KEEP_SUCCEEDED_BYTES  #: how much of them, in the whole namespace
    keep_dead_ms: int = defaults.KEEP_DEAD_MS  #: how long dead jobs wait for somebody to look
    keep_dead_bytes: int = defaults.KEEP_DEAD_BYTES  #: how much of them, in the whole namespace
    record_keep_ms: int = 30 * 24 * HOUR_MS  #: how long rows of ended jobs stay in the record
    events_rows: int = 1_000_000  #: per shard
    events_bytes: int = 256 * MIB  #: per shard

    def __post_init__(self) -> None:
        self._check_each()
        self._check_together()

    @property
    def remote(self) -> bool:
        """
        Whether the URL is that of an HTTP service, rather than that of the queue's own server.
        """
        return self.url is not None and self.url.lower().startswith(("http://", "https://"))

    @property
    def record_url(self) -> str | None:
        """
        The URL of the record, for other processes; of an engine that was handed in, what it says of itself.
        """
        if self.record is None or isinstance(self.record, str):
            return self.record
        return self.record.url.render_as_string(hide_password=False)

    @property
    def heartbeat_ms(self) -> int:
        """
        How often a worker extends its leases: two beats may be missed.
        """
        return self.lease_ms // 3

    @property
    def defaults(self) -> Defaults:
        """
        What holds for handlers that say nothing else, and for topics whose handler is not known.
        """
        return Defaults(max_attempts=self.max_attempts, backoff=self.backoff, ttr_ms=self.ttr_ms)

    @property
    def limits(self) -> Limits:
        """
        The limits that concern single jobs.
        """
        return Limits(
            payload=self.payload_limit,
            result=self.result_limit,
            context=self.context_limit,
            callbacks=None if self.remote else parse_allow(self.callback_allow),
        )

    @classmethod
    def load(
        cls,
        toml_path: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] = os.environ,
        **flags: Any,
    ) -> Settings:
        """
        Merge duly.toml, the environment and flags; a flag that is None is not set.

        Without a path, duly.toml in the working directory is read if there is one.

        Raises:
            UsageError: A key is unknown, or a value is wrong; the message says which and where.
        """
        merged: dict[str, Any] = {}
        for layer, values in layers(toml_path, environ, **flags):
            for key, value in values.items():
                if key not in KEYS:
                    raise UsageError(f"{layer}: unknown setting {key}; {_nearest(key, KEYS)}")
                name, parse = KEYS[key]
                try:
                    merged[name] = parse(value)
                except (UsageError, TypeError, ValueError) as error:
                    raise UsageError(f"{layer}: {key}: {error}") from None
        return cls(**merged)

    def _check_each(self) -> None:
        if not isinstance(self.namespace, str) or not _NAMESPACE.fullmatch(self.namespace):
            raise UsageError(
                f"namespace={self.namespace!r} must be 1 to 50 of the characters A-Z a-z 0-9 _ -"
            )
        if not 1 <= self.shards <= 256:
            raise UsageError(f"shards={self.shards} must be from 1 to 256; 16 suits a cluster")
        if self.url is not None and "://" not in self.url:
            raise UsageError(
                "url must look like redis://host:6379/0, rediss://…, unix:///path/to/socket or https://host"
            )
        if self.remote:
            _check_service(self.url or "")
        if self.api_key is not None and not _API_KEY.fullmatch(self.api_key):
            raise UsageError(
                "api_key must be printable ASCII without spaces, as `duly keys create` prints it"
            )
        self._check_record()
        parse_allow(self.callback_allow)
        for name, kind in (("durability", Durability), ("role", Role), ("record_away", RecordAway)):
            words = get_args(kind)
            if getattr(self, name) not in words:
                raise UsageError(f"{name}={getattr(self, name)!r} must be one of {', '.join(words)}")
        counts = (
            "concurrency",
            "events_rows",
            "events_bytes",
            "ttr_ms",
            "idempotency_ms",
            "idempotency_bytes",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} must be at least 1")
        if not 1 <= self.max_attempts <= 65_535:
            raise UsageError(f"max_attempts={self.max_attempts} must be from 1 to 65535")
        check_backoff(self.backoff)
        for name in ("timer_scan_ms", "recover_scan_ms", "block_ms"):
            if getattr(self, name) < 10:
                raise UsageError(f"{name}={getattr(self, name)} would keep the server busy; use at least 10")

    def _check_record(self) -> None:
        if isinstance(self.record, str):
            if "://" not in self.record:
                raise UsageError(
                    "record must look like sqlite:///path/to/file, postgresql://user@host/name or "
                    "mysql://user@host/name"
                )
        elif self.record is not None:
            _parse_record(self.record)
            if (self.record_pool_size, self.record_max_overflow) != _POOL:
                raise UsageError(
                    "record_pool_size and record_max_overflow are not for an engine, which has a pool of its "
                    "own: say pool_size and max_overflow where it is created"
                )
        if self.record_pool_size < 1:
            raise UsageError(f"record_pool_size={self.record_pool_size} must be at least 1")
        if self.record_max_overflow < 0:
            raise UsageError(f"record_max_overflow={self.record_max_overflow} must be at least 0")
        if self.record_pool_size + self.record_max_overflow < FEWEST_CONNECTIONS:
            raise UsageError(
                f"record_pool_size and record_max_overflow must be at least {FEWEST_CONNECTIONS} together: "
                "two may wait for the queue with a transaction open, and calls need another"
            )
        if self.record_schema is not None and not _SCHEMA.fullmatch(self.record_schema):
            raise UsageError(
                f"record_schema={self.record_schema!r} must be 1 to 63 of the characters A-Z a-z 0-9 _ $, "
                "and not begin with a digit"
            )

    def _check_together(self) -> None:
        if self.record is not None and self.remote:
            raise UsageError("record: an HTTP service has its own; leave it out, or give the URL of a server")
        if self.horizon_ms < 1_000:
            raise UsageError(
                f"horizon_ms={self.horizon_ms} is shorter than the way into the server; use at least 1000"
            )
        if self.lease_ms < 100:
            raise UsageError(
                f"lease_ms={self.lease_ms} leaves no time for three heartbeats; use at least 100"
            )
        if self.socket_timeout_ms < 100:
            raise UsageError(
                f"socket_timeout_ms={self.socket_timeout_ms} leaves no time for tries; use at least 100"
            )
        slowest = max(self.block_ms, self.timer_scan_ms, self.recover_scan_ms)
        if self.stall_ms < 2 * slowest:
            raise UsageError(
                f"stall_ms={self.stall_ms} would end workers that only wait (up to {slowest} ms); "
                f"use at least {2 * slowest}"
            )
        for name in ("payload_limit", "result_limit"):
            if getattr(self, name) > BATCH_BYTES:
                raise UsageError(
                    f"{name}={getattr(self, name)} does not fit into a script call of {BATCH_BYTES} bytes"
                )


def _check_service(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit("http://"), 0
    if not parts.hostname or port == 0:
        raise UsageError(
            "url: that of an HTTP service is https://host, https://host:8420 or https://host/path"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "url: that of an HTTP service has no user, password or ?query; the key is a setting of its own, "
            "api_key or DULY_API_KEY"
        )


def parse_size(value: object) -> int:
    """
    Return bytes of a whole number, or of text like 64KiB, 1MiB, 2GiB.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise UsageError(f"{value!r} is no size; write bytes, 256KiB, 1MiB or 2GiB")
    return int(match[1]) * _SIZE_UNITS[match[2] or "B"]


def _parse_count(value: object) -> int:
    if isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) < 19:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{value!r} is no whole number")
    return value


def _parse_flag(value: object) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = value if isinstance(value, bool) else words.get(str(value).strip().lower())
    if found is None:
        raise UsageError(f"{value!r} is neither true nor false")
    return found


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{value!r} is no text")
    return value


def _parse_texts(value: object) -> str:
    """
    Texts by commas, or a list of them.  What is wrong is not repeated: it may be a secret.
    """
    texts = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
    if (isinstance(value, list) and len(texts) < len(value)) or not isinstance(value, str | list):
        raise UsageError("it must be text, or a list of texts")
    return ",".join(texts)


def _parse_secret(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError("it is no text")  # and what it is, is not shown
    return value


def _parse_record(value: object) -> Any:
    """
    Return a URL, or an engine of SQLAlchemy.

    Raises:
        UsageError: It is neither; it is not repeated, for it may hold a password.
    """
    if isinstance(value, str) or _is_engine(value):
        return value
    raise UsageError(
        "record must be a URL, or an Engine or AsyncEngine of SQLAlchemy, and not of type "
        f"{type(value).__name__!r}"
    )


def _is_engine(value: object) -> bool:
    # Whoever has made one has imported these.
    kinds = (("sqlalchemy", "Engine"), ("sqlalchemy.ext.asyncio", "AsyncEngine"))
    return any(
        isinstance(value, getattr(sys.modules[module], name))
        for module, name in kinds
        if module in sys.modules
    )


def _parse_backoff(value: object) -> Any:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise UsageError(
                f'{value!r} is no JSON ({error}); write it as in {{"kind": "fixed", "delay": 5}}'
            ) from None
        return from_wire(value)  # type: ignore[arg-type]  # which says what is wrong with anything else
    return from_wire(value) if isinstance(value, dict) else value


def _parse_path(value: object) -> Path:
    return value if isinstance(value, Path) else Path(_parse_text(value))


def _keys() -> dict[str, tuple[str, Callable[[object], Any]]]:
    hints = typing.get_type_hints(Settings)
    readers: dict[Any, Callable[[object], Any]] = {
        int: _parse_count,
        bool: _parse_flag,
        Path: _parse_path,
        Path | None: _parse_path,
    }
    table: dict[str, tuple[str, Callable[[object], Any]]] = {}
    for each in fields(Settings):
        if each.name.endswith("_ms"):
            table[each.name.removesuffix("_ms")] = each.name, parse_duration
        elif each.name == "api_key":
            table[each.name] = each.name, _parse_secret
        elif each.name.endswith(("_limit", "_bytes")):
            table[each.name] = each.name, parse_size
        else:
            table[each.name] = each.name, readers.get(hints[each.name], _parse_text)
    for name in ("callback_secrets", "callback_allow", "trusted_proxies"):
        table[name] = name, _parse_texts
    table["backoff"] = "backoff", _parse_backoff
    table["record"] = "record", _parse_record
    return table


#: What users write for each setting: the field that it fills, and how it is read.
KEYS = _keys()


def layers(
    toml_path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    **flags: Any,
) -> list[tuple[str, dict[str, Any]]]:
    """
    What is set where, from the weakest to the strongest, as it was written.

    Raises:
        UsageError: The file cannot be read.
    """
    return [
        *_from_toml(toml_path),
        ("the environment", _from_environ(environ)),
        ("flags", {name: value for name, value in flags.items() if value is not None}),
    ]


def _from_toml(path: str | os.PathLike[str] | None) -> Iterable[tuple[str, dict[str, Any]]]:
    file = Path(FILE if path is None else path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is None:
            return []
        raise UsageError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from error
    try:
        return [(str(file), tomllib.loads(text))]
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: {error}") from error


def _from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Take what begins with DULY_; a variable that is empty is not set.
    """
    for variable, hint in unknown_variables(environ).items():
        # Other programs may own that name, so it stops nothing.
        if variable not in _warned:
            _warned.add(variable)
            log.warning("%s is ignored: unknown variable; %s", variable, hint)
    variables = {f"DULY_{key.upper()}": key for key in KEYS}
    return {key: environ[variable] for variable, key in variables.items() if environ.get(variable)}


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables that begin with DULY_ and set nothing, each with what may have been meant.

    What Kubernetes sets for a Service is not among them.
    """
    known = [*(f"DULY_{key.upper()}" for key in KEYS), *OTHER_VARIABLES]
    return {
        variable: _nearest(variable, known)
        for variable in environ
        if variable.startswith("DULY_") and variable not in known and not _SERVICE_LINK.fullmatch(variable)
    }


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
