"""
The caller's own transaction: whatever kind of session it has, rows are written through its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from duly.errors import RecordUnavailable, UsageError
from duly.record.dialects import lacks_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


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
        RecordUnavailable: Its database has no tables of a record.
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
            raise RecordUnavailable(
                "the session's database has no tables of a record: it must be that of the record, "
                "after `duly record migrate`"
            ) from error
        raise


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
    if session.in_nested_transaction():
        return
    waiting: set[Callable[[], None]] = session.info.get("duly", set())
    while waiting:
        waiting.pop()()


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
