"""
The caller's own transaction: whatever kind of session it has, rows are written through its connection.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from duly.errors import LayoutMismatch, RecordUnavailable, UsageError
from duly.record.database import GRANTS, GrantMissing, first_line
from duly.record.dialects import lacks_grant, lacks_table
from duly.record.generations import newest_generation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Engine

    from duly.record.database import Database

T = TypeVar("T")

IN_BLOCK = "duly.block"  #: in the info of a handler's session, whose own commits are none


class Elsewhere(NamedTuple):
    """
    A session that belongs to another thread, and how to have something done there.
    """

    session: Any
    run: Callable[[Callable[[], Any]], Awaitable[Any]]


AnySession: TypeAlias = "AsyncSession | Session | AsyncConnection | Connection | Elsewhere | Any"


async def within(session: AnySession, work: Callable[[Connection], T]) -> T:
    """
    Run *work* in the transaction of *session*; whether that is committed is its owner's business.

    Raises:
        UsageError: It is no session or connection of SQLAlchemy.
        LayoutMismatch: Its database has no tables of a record.
    """
    session = _own(session)
    try:
        if isinstance(session, Elsewhere):
            theirs = session.session
            answer: T = await session.run(lambda: _blocking(theirs, work))
            return answer
        if isinstance(session, AsyncSession):
            session = await session.connection()
        if isinstance(session, AsyncConnection):
            return await session.run_sync(work)
        return _blocking(session, work)
    except DBAPIError as error:
        if lacks_table(error):
            raise LayoutMismatch(
                "the session's database has no tables of a record: it must be that of the record, "
                "after `duly record migrate`"
            ) from error
        if lacks_grant(error):
            raise GrantMissing(f"the session's database refused: {first_line(error)}; {GRANTS}") from error
        raise


class Home:
    """
    The one database where promises are kept: a job that is written anywhere else would never run.

    Databases are told apart by the id of their record, which each engine of a caller is asked for once.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._id: str | None = None
        self._found: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()

    async def look(self) -> None:
        """
        Learn the id of the record; it has none before its first comparison with the queue.
        """
        if self._id is None:
            with suppress(RecordUnavailable):  # the session's way to it may be another
                found = await self._database.read(partial(newest_generation, namespace=self._namespace))
                self._id = found.record_id if found else None

    def check(self, connection: Connection) -> None:
        """
        Refuse a connection to another database.

        Raises:
            UsageError: It is none of the record's, as far as that is known.
        """
        known = self._id
        if known is None or self._found.get(connection.engine) == known:
            return
        found = newest_generation(connection, self._namespace)
        if found is None or found.record_id != known:
            self._id = None  # asked again next time: the record may have been made anew
            raise UsageError(
                "the session is on another database than the record, where its jobs would never run: "
                f"it must be on {self._database.url.render_as_string()}"
            )
        self._found[connection.engine] = known


def after_commit(session: AnySession, hint: Callable[[], None]) -> None:
    """
    Call *hint* once the session has committed what it was given; also in its thread, if it has one.

    A plain connection tells of commits before they are made, so for that the relay looks by itself.
    """
    session = _own(session)
    if isinstance(session, Elsewhere):
        session = _own(session.session)
    if isinstance(session, AsyncSession):
        session = session.sync_session
    if not isinstance(session, Session):
        return
    waiting: set[Callable[[], None]] = session.info.setdefault("duly", set())
    if not session.info.get("duly.listens"):
        session.info["duly.listens"] = True
        event.listen(session, "after_commit", _committed)
    waiting.add(hint)


def _committed(session: Session) -> None:
    # The end of a savepoint is no commit yet.
    if session.in_nested_transaction() or IN_BLOCK in session.info:
        return
    waiting: set[Callable[[], None]] = session.info.get("duly", set())
    while waiting:
        waiting.pop()()


def commit_hints(session: Session) -> set[Callable[[], None]]:
    """
    Return what is to be called once a handler's block is committed.
    """
    hints: set[Callable[[], None]] = session.info.pop("duly", set())
    return hints


def _own(session: AnySession) -> AnySession:
    return session() if isinstance(session, scoped_session | async_scoped_session) else session


def _blocking(session: AnySession, work: Callable[[Connection], T]) -> T:
    session = _own(session)
    if isinstance(session, Session):
        return work(session.connection())
    if isinstance(session, Connection):
        return work(session)
    what = type(session).__name__
    raise UsageError(
        f"session must be a Session, AsyncSession or connection of SQLAlchemy, not {what}; "
        "`duly.record.lend` makes one of a connection of another kind"
    )
