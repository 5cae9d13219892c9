"""
The steps of a handler's transaction: begin, commit with the ending of its job, and settle a lost answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.util import await_only, greenlet_spawn

from duly.errors import LeaseLost, OutcomeUnknown, RecordUnavailable, UsageError
from duly.pauses import Pauses
from duly.record.crashpoints import crash_point
from duly.record.database import ANSWERS_WITHIN_S, TRIES, first_line, refusal_of
from duly.record.dialects import is_outage, worth_repeating
from duly.record.ending import check_open, was_written, write_ending
from duly.record.jobsession import Result
from duly.record.searchpath import within_schema
from duly.record.sessions import commit_hints

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine, NestedTransaction, RootTransaction
    from sqlalchemy.orm import Session

    from duly.job import JobKey
    from duly.record.runs import EndedRun

T = TypeVar("T")

HANGS_UP_WITHIN_S = 5.0  #: how long a step may take to come back once its connection is cut
_FAULTS = (SQLAlchemyError, OSError, TimeoutError)  #: that a database answers with, or a way to it


class RunEnding(Protocol):
    """
    The run that a transaction belongs to, as far as a transaction has to know it.
    """

    @property
    def key(self) -> JobKey:
        """
        The job.
        """
        ...

    @property
    def revision(self) -> int:
        """
        The revision of the job that runs.
        """
        ...

    @property
    def stopped(self) -> bool:
        """
        Whether the handler was told to stop.
        """
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """
        The event loop of the worker.
        """
        ...

    def enter(self) -> None:
        """
        Note that a block begins.

        Raises:
            UsageError: The run is in one, or its job has ended with one.
            LeaseLost: The run was told to stop.
        """
        ...

    def leave(self) -> None:
        """
        Note that the block is over.
        """
        ...

    def encode(self, value: object) -> bytes:
        """
        Write a result of the handler.

        Raises:
            UsageError: It has no form in JSON, is too large, or is none that the handler returns.
        """
        ...

    def succeed(self, result: bytes) -> EndedRun:
        """
        Describe the run as one that succeeds now.
        """
        ...

    def commit(self, value: object, result: bytes) -> None:
        """
        Note that the ending is committed.
        """
        ...

    def lose(self) -> None:
        """
        Note that the run does not count any more.
        """
        ...


class WholeTask(asyncio.Task[T]):
    """
    A task that goes on to its end, also where a loop that ends cancels all tasks, and waits for them.
    """

    def cancel(self, msg: object = None) -> bool:
        """
        Refuse.
        """
        del msg
        return False


class Way(Protocol):
    """
    How a plain function waits: in its thread, or on the event loop of its greenlet.
    """

    @property
    def stuck(self) -> bool:
        """
        Whether a step has not come back: its connection must not be touched.
        """
        ...

    def run(self, work: Callable[[], T], hang_up: Callable[[], bool]) -> T:
        """
        Run one step; *hang_up* ends what its connection waits for, and returns whether it could.

        Raises:
            TimeoutError: The database said nothing for too long.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """
        Wait before a further try.
        """
        ...


class BlockingWay:
    """
    In a thread.
    """

    stuck = False

    def run(self, work: Callable[[], T], hang_up: Callable[[], bool]) -> T:
        """
        Run one step, however long it takes.
        """
        del hang_up
        return work()

    def sleep(self, seconds: float) -> None:
        """
        Wait before a further try.
        """
        time.sleep(seconds)


class AsyncWay:
    """
    In a greenlet of SQLAlchemy's, on an event loop.
    """

    def __init__(self, database: str) -> None:
        # The thread of a connection to SQLite cannot be stopped, and no network comes in between.
        self._within_s = None if database == "sqlite" else ANSWERS_WITHIN_S
        self.stuck = False

    def run(self, work: Callable[[], T], hang_up: Callable[[], bool]) -> T:
        """
        Run one step, as long as a transaction of the record's own may take.

        Raises:
            TimeoutError: The database said nothing for too long.
        """
        return await_only(self._bounded(work, hang_up))

    async def _bounded(self, work: Callable[[], T], hang_up: Callable[[], bool]) -> T:
        task = WholeTask(greenlet_spawn(work), loop=asyncio.get_running_loop())
        done, _ = await asyncio.wait([task], timeout=self._within_s)
        if not done:
            # psycopg goes on to wait when it is cancelled, and crashes if its connection is closed meanwhile.
            if not hang_up():
                asyncio.Task.cancel(task)
            done, _ = await asyncio.wait([task], timeout=HANGS_UP_WITHIN_S)
            self.stuck = not done
            if done and not task.cancelled():
                task.exception()  # taken: asyncio would print it
            raise TimeoutError(f"no answer within {self._within_s} s")
        return task.result()

    def sleep(self, seconds: float) -> None:
        """
        Wait before a further try.
        """
        await_only(asyncio.sleep(seconds))


class Steps:
    """
    One transaction, step by step: plain functions, for a thread or for a greenlet of SQLAlchemy's.
    """

    def __init__(
        self, engine: Engine, namespace: str, ending: RunEnding, way: Way, *, schema: str | None = None
    ) -> None:
        """
        Prepare: *schema* is that of the record's tables, where it is a setting; the handler has its own.
        """
        self.result = Result(ending.encode)
        self.session: Session | None = None
        self.connection: Connection
        self.given_up = False  #: the handler does not wait for it any more
        self._engine = engine
        self._namespace = namespace
        self._ending = ending
        self._way = way
        self._schema = schema
        self._transaction: RootTransaction
        self._mark: NestedTransaction  #: is gone if somebody else ends the transaction
        self._written: EndedRun | None = None
        self._committing = False
        self._hints: set[Callable[[], None]] = set()  #: to be called once it is committed

    # -- begin --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """
        Begin a transaction, as soon as the database can, and look whether the run counts.
        """
        pauses, tries = Pauses(), 1
        while True:
            try:
                self._run(self._begin_once)
            except LeaseLost:
                self._lose()
                raise
            except _FAULTS as error:
                waits = isinstance(error, PoolTimeout) or "database is locked" in str(error)
                if self.given_up or self._ending.stopped or not (waits or (tries < TRIES and _passes(error))):
                    raise _unavailable(error) from error
                tries += not waits  # others are before it, and it has done nothing that could fail
            else:
                return
            self._way.sleep(pauses.take())

    def _begin_once(self) -> None:
        self.connection = connection = self._engine.connect()
        try:
            self._transaction = connection.begin()
            self._at_home(
                partial(
                    check_open,
                    namespace=self._namespace,
                    key=self._ending.key,
                    revision=self._ending.revision,
                )
            )
            self._mark = connection.begin_nested()
        except BaseException:
            self._close()
            raise
        crash_point("transaction.begun")

    # -- end ----------------------------------------------------------------------------------------------

    def undo(self) -> None:
        """
        Roll back.
        """
        self._run(self._roll_back)

    def finish(self) -> None:
        """
        Commit, with the ending of the job.
        """
        try:
            self._run(self._commit)
        except _FAULTS as error:
            if not self._committing:
                self.undo()
                raise
            self._settle(error)
        except LeaseLost:
            self._lose()
            self.undo()
            raise
        except BaseException:
            self.undo()
            raise
        # From here on nothing that fails may look like a failure of the block.
        self._ending.commit(self.result.value, self.result.data)
        crash_point("transaction.committed")
        _try(partial(self._run, self._close))
        for hint in self._hints:
            hint()

    def _commit(self) -> None:
        if self._ending.stopped:
            raise LeaseLost(f"{self._ending.key} was told to stop before its transaction was committed")
        self._hints = self._end_session()
        self._written = run = self._ending.succeed(self.result.data)
        if not self._at_home(partial(write_ending, namespace=self._namespace, run=run)):
            # It says why.
            self._at_home(partial(check_open, namespace=self._namespace, key=run.key, revision=run.revision))
            raise LeaseLost(f"{run.key} was ended in the record by another run")
        crash_point("transaction.written")
        self._committing = True
        self._transaction.commit()

    def _end_session(self) -> set[Callable[[], None]]:
        """
        Write what the session has, and make sure that the transaction is the one that began with the block.
        """
        session = self.session
        assert session is not None  # noqa: S101  # the block has begun
        session.flush()
        ended = f"the transaction of {self._ending.key} was ended inside its block, which does that itself"
        if not (self._transaction.is_active and self._mark.is_active):
            raise UsageError(f"{ended}: no commit() or rollback() of its connection may be called")
        try:
            session.commit()
            self._mark.commit()
        except DBAPIError as error:
            if is_outage(error) and not worth_repeating(error):
                raise
            raise UsageError(
                f"{ended}: by a commit() or rollback() of its connection, by a statement that commits by "
                f"itself, or by an error that the handler went on after ({first_line(error)})"
            ) from error
        session.close()
        return commit_hints(session)

    def _settle(self, error: BaseException) -> None:
        """
        Find out whether a commit was made whose answer was lost.
        """
        self._run(self._discard)
        pauses = Pauses()
        while True:
            try:
                written = self._run(self._look)
            except LeaseLost:
                self._lose()
                raise
            except _FAULTS as again:
                if self.given_up or self._ending.stopped or self._way.stuck:
                    raise OutcomeUnknown(
                        f"the answer to the commit of {self._ending.key} was lost, and the record cannot be "
                        f"asked: {first_line(again)}; a repeated run will find out"
                    ) from again
                self._way.sleep(pauses.take())
            else:
                break
        if not written:
            raise _unavailable(error) if _is_lost(error) else error

    def _look(self) -> bool:
        assert self._written is not None  # noqa: S101  # it was to be committed
        self.connection = self._engine.connect()
        try:
            return self._at_home(partial(was_written, namespace=self._namespace, run=self._written))
        finally:
            self._close()

    def _at_home(self, work: Callable[[Connection], T]) -> T:
        if self._schema is None:
            return work(self.connection)
        return within_schema(self.connection, self._schema, work)

    def _lose(self) -> None:
        # What becomes of a run that was told to stop, the worker knows.
        if not self._ending.stopped:
            self._ending.lose()

    def _run(self, work: Callable[[], T]) -> T:
        return self._way.run(work, self._hang_up)

    # -- the connection -----------------------------------------------------------------------------------

    def _hang_up(self) -> bool:
        """
        Cut the connection below psycopg, which then comes back with an error; others can be cancelled.
        """
        with suppress(AttributeError, *_FAULTS):
            descriptor: int = cast("Any", self.connection.connection.driver_connection).fileno()
            with socket.socket(fileno=os.dup(descriptor)) as wire:
                wire.shutdown(socket.SHUT_RDWR)
            return True
        return False

    def _roll_back(self) -> None:
        if self._way.stuck:
            return
        if self.session is not None:
            _try(self.session.close)
        self._close()

    def _close(self) -> None:
        """
        Give the connection back, rolled back unless it was committed; a broken one is thrown away.
        """
        if self._way.stuck:
            return
        try:
            self.connection.close()
        except _FAULTS:
            self._discard()

    def _discard(self) -> None:
        """
        Throw the connection away: nobody knows what it is in.
        """
        if self._way.stuck:
            return
        _try(self.connection.invalidate)
        _try(self.connection.close)


def _try(work: Callable[[], object]) -> None:
    # The database ends what is left of a lost connection.
    with suppress(*_FAULTS):
        work()


def _passes(error: BaseException) -> bool:
    """
    Return whether another connection may do: this one was lost, perhaps while it was idle.
    """
    return isinstance(error, DBAPIError) and (error.connection_invalidated or worth_repeating(error))


def _is_lost(error: BaseException) -> bool:
    return not isinstance(error, DBAPIError) or is_outage(error)


def _unavailable(error: BaseException) -> BaseException:
    """
    Return what to raise where nothing was done.
    """
    if isinstance(error, DBAPIError) and not is_outage(error):
        return refusal_of(error)
    return RecordUnavailable(f"the record cannot be reached: {first_line(error)}")
