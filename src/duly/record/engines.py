"""
Engines of SQLAlchemy that an application hands in: its pool and its events stay its own.

Connections of a sync engine belong to no event loop: what is done with them runs in threads.  Those of an
async engine belong to one loop, and on any other the engine is refused.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import event

from duly.errors import UsageError
from duly.forks import at_fork
from duly.record.dialects import begin_in_sqlite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sqlalchemy import Connection, Dialect, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import Pool

T = TypeVar("T")

_BEGINS = "duly_begins"  #: an option of connections: transactions are begun by `begin_anew`
THREADS = 10  #: at most, for transactions of a sync engine
ELSEWHERE = (
    "the record's async engine is used on another event loop, to which its connections belong: hand in a "
    "sync engine (create_engine), which any number of loops and app.sync may share, or a URL"
)
ENDED = (
    "the connections of the record's async engine belong to an event loop that has ended: "
    "`await engine.dispose()` before that loop ends, or hand in a sync engine (create_engine) or a URL"
)
FORKED = (
    "this process was forked while the record's engine had connections to its SQLite file, whose locks it "
    "does not inherit: call engine.dispose() before the fork, or make the engine in each process"
)


def view_of(engine: Engine) -> Engine:
    """
    Return an engine on the pool and with the events of *engine*, whose transactions are what a record needs.
    """
    _known.add(engine)
    if engine.dialect.name == "sqlite":
        return engine.execution_options(**{_BEGINS: True})
    # Others would read rows as they were when the transaction began, or commit every statement by itself.
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="READ COMMITTED")
    view = engine.execution_options()
    event.listen(view, "begin", _begin_in_mariadb)
    return view


def _begin_in_mariadb(connection: Connection) -> None:
    # Of one transaction.  To set it for a connection takes statements before and after each one, where a lost
    # connection is not told apart from other errors.
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    driver: Any = connection.connection.driver_connection
    if driver.get_autocommit():
        connection.exec_driver_sql("START TRANSACTION")


def begin_anew(connection: Connection) -> None:
    """
    Begin as a writer or a reader on an engine for SQLite that was handed in, whatever its own handlers began.

    No handler of ours could: it is called before those.

    Raises:
        UsageError: It commits each statement by itself.
    """
    if not connection.get_execution_options().get(_BEGINS):
        return
    inside: Any = connection.connection.driver_connection
    if getattr(inside, "autocommit", None) is True:
        raise UsageError(
            "the record's engine has SQLite commit each statement by itself (autocommit=True): leave that out"
        )
    if inside.in_transaction:
        connection.exec_driver_sql("ROLLBACK")
    begin_in_sqlite(connection)


# -- event loops --------------------------------------------------------------------------------------------


class _Owners:
    """
    The event loop that each pool of an async engine is used on.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[Pool, weakref.ref[asyncio.AbstractEventLoop]] = (
            weakref.WeakKeyDictionary()
        )

    def claim(self, engine: Engine) -> None:
        """
        Use the pool of *engine* on the loop that runs here.

        Raises:
            UsageError: Its connections belong to another one.
        """
        loop, pool = asyncio.get_running_loop(), engine.pool
        with self._changing:
            owner = self._loops.get(pool)
            if owner is None:
                self._loops[pool] = weakref.ref(loop)
                return
            former = owner()
            if former is loop:
                return
            if former is not None and not former.is_closed():
                raise UsageError(ELSEWHERE)
            if _connections(pool):
                raise UsageError(ENDED)
            self._loops[pool] = weakref.ref(loop)


_owners = _Owners()


def claim(engine: AsyncEngine) -> None:
    """
    Use an engine that was handed in on the loop that runs here.

    Raises:
        UsageError: Its connections belong to another loop, or to another process.
    """
    refuse_forked(engine.sync_engine)
    _owners.claim(engine.sync_engine)


def _connections(pool: Pool) -> int:
    """
    Count the connections that a pool keeps or has given out; a pool that does not tell keeps none.
    """
    counts = [getattr(pool, name, None) for name in ("checkedin", "checkedout")]
    return sum(count() for count in counts if count is not None)


# -- threads ------------------------------------------------------------------------------------------------


class ThreadedEngine:
    """
    A sync engine for event loops: what of `AsyncEngine` a record uses.
    """

    def __init__(self, engine: Engine, threads: ThreadPoolExecutor | None = None) -> None:
        self.sync_engine = engine
        self._threads = threads or ThreadPoolExecutor(THREADS, "duly-record")

    @property
    def dialect(self) -> Dialect:
        """
        That of the engine.
        """
        return self.sync_engine.dialect

    def execution_options(self, **options: Any) -> ThreadedEngine:
        """
        Return one on the same pool and threads, with other options.
        """
        return ThreadedEngine(self.sync_engine.execution_options(**options), self._threads)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ThreadedConnection]:
        """
        Take a connection of the pool for a while; a transaction that is not committed is rolled back.
        """
        taken: list[Connection] = []
        try:
            await self.run(lambda: taken.append(self.sync_engine.connect()))
            yield ThreadedConnection(self, taken[0])
        finally:
            if taken:
                await self.run(taken[0].close)

    async def run(self, work: Callable[[], T]) -> T:
        """
        Run *work* in a thread; a caller that is cancelled waits for it, since a thread cannot be stopped.
        """
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # taken: asyncio would print it
            raise

    def close(self) -> None:
        """
        End threads as soon as they have nothing to do.
        """
        self._threads.shutdown(wait=False)


class ThreadedConnection:
    """
    A connection of a sync engine: what of `AsyncConnection` a record uses.
    """

    def __init__(self, engine: ThreadedEngine, connection: Connection) -> None:
        self._engine = engine
        self._connection = connection

    async def run_sync(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """
        Run *work* with the connection.
        """
        return await self._engine.run(partial(work, self._connection, *args, **options))

    async def commit(self) -> None:
        """
        Commit.
        """
        await self._engine.run(self._connection.commit)


# -- forks --------------------------------------------------------------------------------------------------

_known: weakref.WeakSet[Engine] = weakref.WeakSet()  #: those that were handed in
_refused: weakref.WeakSet[Pool] = weakref.WeakSet()  #: to SQLite, with connections of this process's parent
#: Of the parents of a forked child.  Never freed there: that would close what the parent still uses.
_inherited: list[Pool] = []


def refuse_forked(engine: Engine) -> None:
    """
    Refuse an engine whose connections to a file of SQLite are those of the parent of this process.

    Raises:
        UsageError: They are.
    """
    if engine.pool in _refused:
        raise UsageError(FORKED)


def _after_fork_in_child(_: None) -> None:
    global _owners  # noqa: PLW0603  # its lock may be held by a thread that does not exist here
    _owners = _Owners()
    for engine in list(_known):
        if not _connections(engine.pool):
            continue
        _inherited.append(engine.pool)
        if engine.dialect.name == "sqlite":
            _refused.add(engine.pool)
        else:
            # As SQLAlchemy says of forks: the parent's connections are left to it, and nothing is closed.
            engine.dispose(close=False)


at_fork(lambda: None, lambda: None, _after_fork_in_child)
