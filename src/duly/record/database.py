"""
The database of a record: connections, and transactions that are repeated where that is safe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import greenlet_spawn

from duly.errors import LayoutMismatch, OutcomeUnknown, RecordUnavailable, ServerUnsuitable, UsageError
from duly.forks import importing
from duly.pauses import Pauses
from duly.record import pool
from duly.record.dialects import (
    arguments,
    is_forbidden,
    is_locked,
    is_outage,
    is_passing_state,
    lacks_grant,
    lacks_table,
    limit_waiting,
    parse,
    tame,
    worth_repeating,
)
from duly.record.engines import ELSEWHERE, ThreadedEngine, begin_anew, claim, refuse_forked, view_of
from duly.record.searchpath import search_in
from duly.record.target import target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sqlalchemy import Connection, Engine

    from duly.record.target import AnyTarget

    AnyEngine: TypeAlias = AsyncEngine | ThreadedEngine

log = logging.getLogger("duly.record")

T = TypeVar("T")

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

    def __init__(self, source: AnyTarget) -> None:
        """
        Prepare; connects to nothing yet.

        Raises:
            UsageError: It is no database that can be a record.
        """
        self.target = target_of(source)
        self.url = self.target.url
        self.name: str = self.target.name  #: sqlite, postgresql or mysql, also for MariaDB
        handed = self.target.source
        #: The application's, whose pool is its own; None where we made one
        self._handed = None if isinstance(handed, str) else handed
        self.engine = self._in_schema(self._make_engine() if self._handed is None else _view(self._handed))
        self._in_threads: set[asyncio.Future[Any]] = set()  #: transactions of SQLite, or of a sync engine
        self._looked = self.name != "sqlite" or self._handed is not None
        # SQLite has one writer at a time; readers need not queue behind it.
        self._readers = self.engine.execution_options(duly_reads=True)

    @property
    def handed(self) -> Engine | AsyncEngine | None:
        """
        The application's engine, None where we made one.
        """
        return self._handed

    @property
    def listen_url(self) -> str | None:
        """
        Where notices of PostgreSQL are listened to; None means nowhere.
        """
        return self.target.listen_url

    def _in_schema(self, engine: AnyEngine) -> AnyEngine:
        schema = self.target.schema
        if schema is None:
            return engine
        view = search_in(engine.sync_engine, schema)
        return ThreadedEngine(view) if isinstance(engine, ThreadedEngine) else AsyncEngine(view)

    def _make_engine(self) -> AsyncEngine:
        if self.name == "sqlite":
            return pool.SHARES.join(self.url, self)
        with importing():
            engine = create_async_engine(
                self.url,
                pool_size=self.target.pool_size,
                max_overflow=self.target.max_overflow,
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
        if isinstance(self.engine, ThreadedEngine):
            self.engine.close()
        elif self._handed is not None:
            return  # its pool is closed by whoever made it
        elif self.name == "sqlite":
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

    def _claim(self) -> None:
        """
        See that an engine that was handed in may be used here.
        """
        if isinstance(self._handed, AsyncEngine):
            claim(self._handed)
        elif self._handed is not None:
            refuse_forked(self._handed)

    async def _repeat(self, engine: AnyEngine, work: Callable[[Connection], T], *, wait: bool = True) -> T:
        if not self._looked:
            self._look_for_file()
        self._claim()
        in_doubt = False
        number = 0
        locks = Pauses(PAUSE_S, LOCKED_PAUSE_S)
        until_s = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            attempt = _Attempt(engine, self._in_threads)
            try:
                async with asyncio.timeout(ANSWERS_WITHIN_S):
                    return await attempt.run(work)
            except RuntimeError as error:
                if self._handed is None or "loop" not in str(error):
                    raise
                raise UsageError(ELSEWHERE) from error  # the application used it on one, before we did
            except Exception as error:
                if not (isinstance(error, SQLAlchemyError | OSError | TimeoutError) or of_driver(error)):
                    raise
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

    def __init__(self, engine: AnyEngine, in_threads: set[asyncio.Future[Any]]) -> None:
        self._engine = engine
        self._in_threads = in_threads
        self.connected = False
        self.committing = False
        self._given_up = False

    async def run(self, work: Callable[[Connection], T]) -> T:
        whole: Coroutine[Any, Any, T]
        if isinstance(self._engine, ThreadedEngine):
            whole = self._engine.run(partial(self._run, work))
        else:
            # All of it at once: each step from the loop into SQLAlchemy costs as much as a statement.
            whole = greenlet_spawn(self._run, work)
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
                begin_anew(connection)
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
    if of_driver(error) and not is_passing_state(getattr(error, "sqlstate", None)):
        return ServerUnsuitable(f"the record refused it, and will again: {what}; see duly doctor")
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
    # asyncpg has no such kinds: what is neither a mistake nor of data is the last.
    if isinstance(error, OperationalError | InterfaceError | InternalError) or type(error) is DBAPIError:
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


def of_driver(error: BaseException) -> bool:
    """
    Return whether an error is a driver's own: some do not have SQLAlchemy tell why no connection was made.
    """
    return type(error).__module__.partition(".")[0] in ("asyncpg", "asyncmy", "pymysql")


def _view(engine: Engine | AsyncEngine) -> AnyEngine:
    if isinstance(engine, AsyncEngine):
        return AsyncEngine(view_of(engine.sync_engine))
    return ThreadedEngine(view_of(engine))


def sync_engine(source: AnyTarget) -> Engine:
    """
    A plain engine for what runs once and without an event loop, such as migrations.

    Raises:
        UsageError: It is no database that can be a record, or an engine that needs an event loop.
    """
    target = target_of(source)
    if isinstance(target.source, AsyncEngine):
        raise UsageError(
            "an async engine does nothing outside of an event loop: say the URL, or give an engine made with "
            "create_engine"
        )
    if isinstance(target.source, str):
        parts = parse(target.source, sync=True)
        engine = create_engine(parts, pool_size=1, max_overflow=1, **arguments(parts))
        tame(engine)
    else:
        refuse_forked(target.source)
        engine = view_of(target.source)
    return engine if target.schema is None else search_in(engine, target.schema)
