"""
Which database a record is in, and how it is reached: by a URL, or by an engine that the application hands in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from duly.defaults import RECORD_MAX_OVERFLOW, RECORD_POOL_SIZE
from duly.errors import UsageError
from duly.record.dialects import parse

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from duly.settings import Settings

_DATABASES = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}


@dataclass(frozen=True, slots=True)
class Target:
    """
    The database of a record.
    """

    source: str | Engine | AsyncEngine = field(repr=False)  #: a URL, or an engine of the application's
    schema: str | None = None  #: of PostgreSQL; None means that of the connection's search path
    pool_size: int = RECORD_POOL_SIZE
    max_overflow: int = RECORD_MAX_OVERFLOW
    listen: str | None = field(default=None, repr=False)  #: a URL without a pooler in between, for LISTEN

    def __post_init__(self) -> None:
        """
        Check it.

        Raises:
            UsageError: It is no database that can be a record, or has no such setting.
        """
        if not isinstance(self.source, str):
            check_engine(self.source)
        for name, value in (("record_schema", self.schema), ("record_listen", self.listen)):
            if value is not None and self.name != "postgresql":
                raise UsageError(f"{name} is for a record on PostgreSQL, and this one is not: leave it out")
        if self.listen is not None:
            _check_listen(self.listen)

    @classmethod
    def of(cls, settings: Settings) -> Target:
        """
        Return the record that the settings name.

        Raises:
            UsageError: See above.
        """
        return cls(
            settings.record or "",
            schema=settings.record_schema,
            pool_size=settings.record_pool_size,
            max_overflow=settings.record_max_overflow,
            listen=settings.record_listen,
        )

    def need_no_loop(self) -> None:
        """
        Refuse what belongs to one event loop of the application.

        Raises:
            UsageError: It is an async engine.
        """
        if isinstance(self.source, AsyncEngine):
            raise UsageError(
                "app.sync has an event loop of its own, where the connections of the record's async engine "
                "cannot be used: hand in a sync engine (create_engine), or a URL"
            )

    @property
    def name(self) -> str:
        """
        The kind of database: sqlite, postgresql or mysql, also for MariaDB.
        """
        if isinstance(self.source, str):
            return parse(self.source).get_backend_name()
        return _DATABASES[self.source.dialect.name]

    @property
    def url(self) -> URL:
        """
        Its address; that of a URL with the driver that duly uses on event loops.
        """
        return parse(self.source) if isinstance(self.source, str) else self.source.url

    @property
    def listen_url(self) -> str | None:
        """
        Where notices of PostgreSQL are listened to; None means nowhere.

        An engine that is handed in may connect by what its URL does not say, and its connections are for
        transactions.
        """
        if self.name != "postgresql" or (self.listen is None and not isinstance(self.source, str)):
            return None
        url = parse(self.listen) if self.listen is not None else self.url
        return url.set(drivername="postgresql").render_as_string(hide_password=False)


#: What functions of a record take.
AnyTarget: TypeAlias = "str | Engine | AsyncEngine | Target"


def target_of(source: AnyTarget) -> Target:
    """
    Make a target of what names one.

    Raises:
        UsageError: It is no database that can be a record.
    """
    return source if isinstance(source, Target) else Target(source)


def check_engine(engine: Engine | AsyncEngine) -> None:
    """
    Refuse an engine that a record cannot use.

    Raises:
        UsageError: Its database is none that can be a record, or its driver needs another kind of engine.
    """
    name = engine.dialect.name
    if name not in _DATABASES:
        raise UsageError(
            f"a record cannot be kept through an engine of {name!r}: it must be one of PostgreSQL, MariaDB "
            "or SQLite"
        )
    if isinstance(engine, Engine) and engine.dialect.is_async:
        raise UsageError(
            f"the driver {engine.driver} of the record's engine needs an event loop: make the engine with "
            "create_async_engine, and hand in that AsyncEngine itself"
        )
    if name == "sqlite" and engine.url.database in (None, "", ":memory:"):
        raise UsageError(
            "a record in memory remembers nothing; make the engine for a file, sqlite:///path/to/file"
        )


def _check_listen(url: str) -> None:
    try:
        name = make_url(url).drivername.partition("+")[0]
    except (ArgumentError, ValueError):
        name = ""  # not repeated: it may hold a password
    if name not in ("postgresql", "postgres"):
        raise UsageError("record_listen must look like postgresql://user@host/name")
    parse(url)
