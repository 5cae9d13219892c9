"""
The database of a record: connections, and transactions that are repeated where that is safe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from duly.errors import LayoutMismatch, OutcomeUnknown, RecordUnavailable, ServerUnsuitable
from duly.forks import importing
from duly.pauses import Pauses
from duly.record import pool
from duly.record.dialects import (
    arguments,
    is_forbidden,
    is_locked,
    is_outage,
    lacks_grant,
    lacks_table,
    limit_waiting,
    parse,
    tame,
    worth_repeating,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

log = logging.getLogger("duly.record")

T = TypeVar("T")

POOL = 5
POOL_MORE = 5  #: connections beyond that, closed when they are given back
RECYCLE_S = 1_800  #: servers and what stands before them close connections that idle for hours
ANSWERS_WITHIN_S = 30  #: a transaction, waiting for a connection and for locks included
GRANTS = "`duly record grants` prints what its role needs"
TRIES = 4
PAUSE_S = 0.02  #: before the second try, doubled for each further one
LOCKED_PAUSE_S = 0.25  #: at most, before the next try where somebody else holds a lock


class GrantMissing(ServerUnsuitable):
    """
    The role of the record lacks a grant: what was tried will not work before somebody gives it.
    """


class RowsLocked(RecordUnavailable):
    """
    Another transaction, which may be a user's, holds a lock; nothing was changed.
    """


class Database:
    """
    Where the rows are.  Work on them is a plain function of a `Connection`, run in a transaction.

    Connections are opened on first use and belong to the event loop of that use; those to a file of SQLite
    are shared by the loops of a process.
    """

    def __init__(self, url: str) -> None:
        """
        Prepare; connects to nothing yet.

        Raises:
            UsageError: The URL is none of a database that can be a record.
        """
        self.url = parse(url)
        self.name: str = self.url.get_backend_name()  #: sqlite, postgresql or mysql, also for MariaDB
        self.engine = self._make_engine()
        self._in_threads: set[asyncio.Future[Any]] = set()  #: transactions of SQLite
        self._looked = self.name != "sqlite"
        # SQLite has one writer at a time; readers need not queue behind it.
        self._readers = self.engine.execution_options(duly_reads=True)

    def _make_engine(self) -> AsyncEngine:
        if self.name == "sqlite":
            return pool.SHARES.join(self.url, self)
        with importing():
            engine = create_async_engine(
                self.url,
                pool_size=POOL,
                max_overflow=POOL_MORE,
                pool_timeout=ANSWERS_WITHIN_S,
                pool_recycle=RECYCLE_S,
                # The one used last: it knows the statements that are used now.
                pool_use_lifo=True,
                **arguments(self.url),
            )
        tame(engine.sync_engine)
        limit_waiting(engine.sync_engine)
        return engine

    async def write(self, work: Callable[[Connection], T], *, wait: bool = True) -> T:
        """
        Run *work* in a transaction, commit, and return what it returned.

        It may be run again: after a deadlock, or where a connection was lost, or where somebody else holds a
        lock, for which it waits as long as for anything, a moment at a time.  It recognises itself what an
        earlier run may have committed.

        Raises:
            RowsLocked: Somebody else holds a lock; nothing was changed.  With *wait*, only after that time.
            RecordUnavailable: The database cannot be reached; nothing was changed.
            LayoutMismatch, ServerUnsuitable: It lacks tables, or refuses for good; nothing was changed.
            OutcomeUnknown: It may have been committed, the answer was lost; repeating it is safe.
        """
        return await self._repeat(self.engine, work, wait=wait)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """
        Run *work*, which changes nothing, at one moment of the database where it has such.

        Raises:
            RecordUnavailable: The database cannot be reached.
        """
        return await self._repeat(self._readers, work)

    async def aclose(self) -> None:
        """
        Close connections, when what goes on in the threads of some has come to its end.
        """
        if self._in_threads:
            await asyncio.wait(self._in_threads)
        if self.name == "sqlite":
            await pool.SHARES.leave(self.url, self)
        else:
            await self.engine.dispose()

    def _look_for_file(self) -> None:
        """
        Say which file cannot be opened, which SQLite does not, before a thread is started to open it.
        """
        file = Path(self.url.database or "")
        if not os.access(file if file.exists() else file.parent, os.R_OK | os.W_OK):
            raise RecordUnavailable(f"the record cannot be reached: {file} cannot be opened for writing")
        self._looked = True

    async def _repeat(self, engine: AsyncEngine, work: Callable[[Connection], T], *, wait: bool = True) -> T:
        if not self._looked:
            self._look_for_file()
        in_doubt = False
        number = 0
        locks = Pauses(PAUSE_S, LOCKED_PAUSE_S)
        until_s = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            attempt = _Attempt(engine, self._in_threads)
            try:
                async with asyncio.timeout(ANSWERS_WITHIN_S):
                    return await attempt.run(work)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                in_doubt = in_doubt or attempt.committing
                if isinstance(error, DBAPIError) and is_locked(error):
                    if not wait or time.monotonic() > until_s:
                        raise _said(error, in_doubt=in_doubt) from error
                    # Without a connection, which others need meanwhile.
                    pause_s = locks.take()
                else:
                    number += 1
                    if number == TRIES or not _passing(error, attempt):
                        raise _said(error, in_doubt=in_doubt) from error
                    pause_s = PAUSE_S * 2 ** (number - 1)
                log.debug("once more: %s", first_line(error))
            await asyncio.sleep(pause_s)


class _Attempt:
    """
    One try of one transaction, and how far it came.
    """

    def __init__(self, engine: AsyncEngine, in_threads: set[asyncio.Future[Any]]) -> None:
        self._engine = engine
        self._in_threads = in_threads
        self.connected = False
        self.committing = False
        self._given_up = False

    async def run(self, work: Callable[[Connection], T]) -> T:
        # All of it at once: each step from the loop into SQLAlchemy costs as much as a statement.
        whole: Coroutine[Any, Any, T] = greenlet_spawn(self._run, work)
        if self._engine.dialect.name != "sqlite":
            return await whole
        # Its thread cannot be stopped: who is cancelled would leave a transaction open that holds up others.
        task = _Unstoppable(whole, loop=asyncio.get_running_loop())
        self._in_threads.add(task)
        task.add_done_callback(self._in_threads.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._given_up = True
            task.add_done_callback(_note_unread)
            raise

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._engine.sync_engine.connect() as connection:
            self.connected = True
            with connection.begin() as transaction:
                answer = work(connection)
                if self._given_up:
                    # Nobody waits for it any more, and whoever did was told that nothing was changed.
                    transaction.rollback()
                    return answer
                self.committing = not connection.get_execution_options().get("duly_reads")
                transaction.commit()
        return answer


class _Unstoppable(asyncio.Task[T]):
    """
    A task that goes on to its end, also where a loop that ends cancels all tasks, and waits for them.
    """

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002  # as it is called
        """
        Refuse: SQLAlchemy would print what is cancelled while it ends a transaction.
        """
        return False


def _note_unread(task: asyncio.Task[Any]) -> None:
    """
    Take the error of a transaction that its caller gave up: asyncio would print one that nobody takes.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a transaction failed after its caller gave up: %s", first_line(error))


def _passing(error: Exception, attempt: _Attempt) -> bool:
    """
    Whether another try has a chance: the server asked for it, or it is back behind a connection that broke.
    """
    if isinstance(error, DBAPIError):
        return worth_repeating(error) or (attempt.connected and error.connection_invalidated)
    return False


def _said(error: Exception, *, in_doubt: bool) -> Exception:
    what = first_line(error)
    if in_doubt:
        return OutcomeUnknown(f"the record's answer was lost: {what}; repeating the same call is safe")
    if isinstance(error, DBAPIError) and is_locked(error):
        return RowsLocked(f"a transaction of somebody else has locked what the record needs: {what}")
    if isinstance(error, DBAPIError) and not is_outage(error):
        return refusal_of(error)
    if isinstance(error, PoolTimeout):
        what = f"no connection became free within {ANSWERS_WITHIN_S} s"
    elif isinstance(error, TimeoutError):
        what = f"no answer within {ANSWERS_WITHIN_S} s"
    elif isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError):
        return error
    return RecordUnavailable(f"the record cannot be reached: {what}")


def refusal_of(error: DBAPIError) -> Exception:
    """
    Return what an error of the database means that waiting does not end.
    """
    if lacks_table(error):
        return LayoutMismatch("the record has no tables yet, or not all of them: duly record migrate")
    if lacks_grant(error):
        return GrantMissing(f"the record does not allow it: {first_line(error)}; {GRANTS}")
    if is_forbidden(error):
        return ServerUnsuitable(
            f"the record does not allow it: {first_line(error)}; check the user and password in its URL, and "
            "what it may do there"
        )
    if isinstance(error, OperationalError | InterfaceError | InternalError):
        return ServerUnsuitable(
            f"the record refused it, and will again: {first_line(error)}; see duly doctor"
        )
    # A mistake in a statement of ours, or data that breaks a rule: no sentence would help.
    return error


def first_line(error: BaseException) -> str:
    """
    What an error says, without the statement and the links that SQLAlchemy adds.
    """
    told: Any = getattr(error, "orig", None) or error
    if getattr(told, "args", None) and isinstance(told.args[0], int) and len(told.args) > 1:
        told = told.args[1]  # MySQL: a number, then words
    lines = str(told).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def sync_engine(url: str) -> Engine:
    """
    A plain engine for what runs once and without an event loop, such as migrations.

    Raises:
        UsageError: The URL is none of a database that can be a record.
    """
    parts = parse(url, sync=True)
    engine = create_engine(parts, pool_size=1, max_overflow=1, **arguments(parts))
    tame(engine)
    return engine
