"""
The connections of a process to one file of SQLite: a few, shared by all of its event loops.

Each connection is a thread that answers to whichever loop asks, so none belongs to a loop.  SQLite has one
writer at a time: a connection for each loop would hold files open and make no commit earlier.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Pool
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only, greenlet_spawn

from duly.errors import UsageError
from duly.forks import at_fork, importing
from duly.loops import unpatched
from duly.record.dialects import arguments, tame
from duly.record.realthread import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    import aiosqlite
    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import ConnectionPoolEntry

FORK_WAITS_S = 1.0  #: for transactions to end
_LOOK_S = 0.001
REFUSAL = (
    "this process was forked during a transaction of its parent on the record {file}, and SQLite would see "
    "that transaction here for ever: fork in a thread that runs no event loop, or before the app is used, or "
    'start the process with multiprocessing.get_context("spawn")'
)
CONNECTIONS = 6  #: at most, in a process; each holds two files open


class Turns:
    """
    At most so many at once in a process, first come, first served, whichever event loop they wait on.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Not one of greenlets where threads are patched: loops of several real threads take turns.
        # Reentrant: garbage that is collected meanwhile may give a turn back.
        self._changing = unpatched("RLock")()
        self._waiting: deque[_Turn] = deque()
        self._pauses = 0
        self.taken = 0

    async def take(self) -> None:
        """
        Wait for a turn.
        """
        with self._changing:
            if self.taken < self._limit and not self._pauses:
                self.taken += 1
                return
            turn = _Turn(asyncio.get_running_loop().create_future())
            self._waiting.append(turn)
        try:
            await turn.begun
        except BaseException:  # it is cancelled, or its loop was closed
            with self._changing:
                if turn.given:
                    self.give()
                elif turn in self._waiting:
                    self._waiting.remove(turn)
            raise

    def give(self) -> None:
        """
        Pass a turn on to whoever waits longest, on a loop that is not closed.
        """
        with self._changing:
            if self._pauses or not self._pass_on():
                self.taken -= 1

    def pause(self) -> None:
        """
        Let nobody begin until `resume`, which is called as often.
        """
        with self._changing:
            self._pauses += 1

    def resume(self) -> None:
        """
        Let those begin who wait.
        """
        with self._changing:
            self._pauses -= 1
            while not self._pauses and self.taken < self._limit and self._pass_on():
                self.taken += 1

    def _pass_on(self) -> bool:
        """
        Begin the turn of whoever waits longest; return whether there is somebody.
        """
        while self._waiting:
            turn = self._waiting.popleft()
            try:
                turn.begun.get_loop().call_soon_threadsafe(turn.begin)
            except RuntimeError:
                continue  # the loop was closed, and whoever waited is gone with it
            turn.given = True
            return True
        return False


class _Turn:
    """
    Somebody who waits for a turn.
    """

    def __init__(self, begun: asyncio.Future[None]) -> None:
        self.begun = begun
        self.given = False

    def begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)


class SharedPool(Pool):
    """
    A pool for transactions on any number of loops; none opens a connection while another is idle.
    """

    _is_asyncio = True  # as SQLAlchemy asks of pools

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = Turns(CONNECTIONS)
        #: One connection is opened at a time: SQLAlchemy has a lock for the first one, which is for one loop.
        self._opening = Turns(1)
        self._idle: deque[ConnectionPoolEntry] = deque()
        self.refusal = ""  #: why nothing can be done with the file in this process

    @property
    def in_use(self) -> bool:
        """
        Whether a connection is used or opened at this moment.
        """
        return self._turns.taken > 0

    def pause(self) -> None:
        """
        Let no transaction begin until `resume`.
        """
        self._turns.pause()

    def resume(self) -> None:
        """
        Let transactions begin again.
        """
        self._turns.resume()

    @property
    def idle(self) -> int:
        """
        The number of connections that nobody uses.
        """
        return len(self._idle)

    def close_idle(self) -> list[Any]:
        """
        Close what is idle, without an event loop, and return its threads, which end when that is done.
        """
        threads = []
        while self._idle:
            try:
                record = self._idle.pop()
            except IndexError:  # another loop was faster
                break
            driver: Any = record.driver_connection
            if driver is not None:  # it was not found broken, and closed
                cast("Any", record).dbapi_connection = None
                driver.stop()
                threads.append(driver._thread)  # noqa: SLF001  # nothing else tells
        return threads

    def checkedout(self) -> int:
        """
        Return the number of connections in use.
        """
        return self._turns.taken

    def status(self) -> str:
        """
        Say how many connections there are.
        """
        return f"{self.checkedout()} in use, {len(self._idle)} idle"

    def recreate(self) -> Self:
        """
        Return the same pool: `dispose` leaves it usable.
        """
        return self

    def dispose(self) -> None:
        """
        Close what is idle.
        """
        while self._idle:
            try:
                record = self._idle.pop()
            except IndexError:  # another loop was faster
                return
            record.close()

    def _do_get(self) -> ConnectionPoolEntry:
        if self.refusal:
            raise UsageError(self.refusal)
        await_only(self._turns.take())
        try:
            # The one used last: it knows the statements that are used now.
            return self._idle.pop()
        except IndexError:
            pass
        try:
            await_only(self._opening.take())
            try:
                return self._create_connection()
            finally:
                self._opening.give()
        except BaseException:
            self._turns.give()
            raise

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        self._idle.append(record)
        self._turns.give()


class Shares:
    """
    The engines of this process for files of SQLite, each with its users.
    """

    def __init__(self) -> None:
        self._changing = unpatched("RLock")()
        self._engines: dict[URL, tuple[AsyncEngine, WeakSet[object]]] = {}
        #: Also those of engines that nobody uses any more
        self._pools: WeakKeyDictionary[SharedPool, URL] = WeakKeyDictionary()
        #: Of every connection the thread, which ends when the file is closed.  Nothing else tells of those
        #: that are being closed, whose engine may be gone.
        self._threads: dict[URL, WeakSet[Any]] = {}
        self._pauses = 0
        self.refused: set[URL] = set()  #: files that were in use when this process was forked

    def join(self, url: URL, user: object) -> AsyncEngine:
        """
        Return the engine for a file, which *user* uses until `leave`.
        """
        with self._changing:
            if url not in self._engines:
                options = arguments(url)
                options["connect_args"]["async_creator_fn"] = partial(self._connect, url)
                with importing():
                    engine = create_async_engine(url, poolclass=SharedPool, **options)
                tame(engine.sync_engine)
                pool = cast("SharedPool", engine.sync_engine.pool)
                if url in self.refused:
                    pool.refusal = REFUSAL.format(file=url.database)
                self._pools[pool] = url
                for _ in range(self._pauses):
                    pool.pause()
                self._engines[url] = engine, WeakSet()
            engine, users = self._engines[url]
            users.add(user)
        return engine

    async def leave(self, url: URL, user: object) -> None:
        """
        Close connections once nobody uses them.
        """
        with self._changing:
            shared = self._engines.get(url)
            if shared is None:
                return
            engine, users = shared
            users.discard(user)
            if users:
                return
            del self._engines[url]
        await greenlet_spawn(engine.sync_engine.pool.dispose)

    def _connect(self, url: URL, *args: Any, **options: Any) -> aiosqlite.Connection:
        connection = connect(*args, **options)
        with self._changing:
            self._threads.setdefault(url, WeakSet()).add(connection._thread)  # noqa: SLF001  # see above
        return connection

    def pause(self) -> None:
        """
        Let no transaction begin on any file until `resume`, which is called as often.
        """
        with self._changing:
            self._pauses += 1
            for each in list(self._pools):
                each.pause()

    def resume(self) -> None:
        """
        Let transactions begin again.
        """
        with self._changing:
            self._pauses -= 1
            for each in list(self._pools):
                each.resume()

    @property
    def at_rest(self) -> bool:
        """
        Whether every connection is idle: none is used, opened or closed at this moment.
        """
        with self._changing:
            # In this order: what is idle was given back before its turn was.
            busy = any(each.in_use for each in list(self._pools))
            return not busy and len(self._alive()) <= sum(each.idle for each in list(self._pools))

    def close_idle(self) -> list[Any]:
        """
        Close what is idle, without an event loop, and return its threads, which end when that is done.
        """
        return [thread for each in list(self._pools) for thread in each.close_idle()]

    def open(self) -> set[URL]:
        """
        Return the files that have connections, or get one at this moment.
        """
        with self._changing:
            using = {url for pool, url in list(self._pools.items()) if pool.in_use}
            return using | set(self._alive())

    def files(self) -> set[URL]:
        """
        Return the files that may have connections.
        """
        return set(self._threads) | set(self._pools.values())

    def _alive(self) -> list[URL]:
        """
        The file of each connection.
        """
        return [url for url, threads in self._threads.items() for each in list(threads) if each.is_alive()]


# -- forks ------------------------------------------------------------------------------------------------
#
# SQLite keeps a table of the files that a process has open, and of its locks on them.  A forked child
# inherits the table with the entries of its parent, and not the locks: where a transaction was open, the file
# stays locked in the child for good, and where a connection was idle, the child writes to a log that its
# parent may delete.  So a fork waits for the end of transactions and closes what is idle; the next one
# opens a connection again.


def _before_fork() -> set[URL]:
    """
    Close what can be closed, and return the files of the rest.
    """
    SHARES.pause()
    try:
        # Not for ever: what is on an event loop of this very thread cannot end before the fork.
        _wait(lambda: SHARES.at_rest)
        if SHARES.open():
            # In a thread without an event loop: aiosqlite would make one here.
            closing: list[Any] = []
            closer = threading.Thread(target=lambda: closing.extend(SHARES.close_idle()), name="duly-fork")
            with suppress(RuntimeError):  # the interpreter ends, and starts no threads
                closer.start()
                closer.join()
            _wait(lambda: not any(each.is_alive() for each in closing))
        return SHARES.open()
    except BaseException:
        SHARES.resume()
        raise


def _wait(until: Callable[[], bool]) -> None:
    for _ in range(round(FORK_WAITS_S / _LOOK_S)):  # counted, since a test may have stopped the clock
        if until():
            return
        time.sleep(_LOOK_S)


def _after_fork_in_parent() -> None:
    SHARES.resume()


def _after_fork_in_child(in_use: set[URL] | None) -> None:
    # The threads of a parent's connections do not exist in its forked child.  The engines are kept for good:
    # freeing them would end locks of the parent.
    global SHARES  # noqa: PLW0603  # it belongs to the process
    _inherited.append(SHARES)
    refused = SHARES.refused | (SHARES.files() if in_use is None else in_use)
    SHARES = Shares()
    SHARES.refused = refused


SHARES = Shares()  #: those of this process
_inherited: list[Shares] = []
at_fork(_before_fork, _after_fork_in_parent, _after_fork_in_child)
