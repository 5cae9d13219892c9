"""
Connections to a file of SQLite, each with a thread of the operating system, also where threads are patched.

aiosqlite runs the calls of each connection in a thread.  Where gevent or eventlet has made greenlets of
threads, those of all connections share one real thread.  SQLite waits for a lock without a switch to another
greenlet: it would hold up the connection that holds the lock, until the time for waiting is over.
"""

from __future__ import annotations

import time
from _queue import SimpleQueue  # `queue` has greenlets' own one where gevent has patched it
from typing import TYPE_CHECKING, Any

from duly.forks import importing
from duly.loops import patched_by, unpatched

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiosqlite

POLL_S = 0.001


def connect(*args: Any, **options: Any) -> aiosqlite.Connection:
    """
    Prepare a connection as `aiosqlite.connect` does.
    """
    with importing():
        import aiosqlite  # noqa: PLC0415  # only where the record is kept by SQLite
        from aiosqlite.core import _connection_worker_thread as run_calls  # noqa: PLC0415  # as above

        from duly.record.sqliteconnection import SqliteConnection  # noqa: PLC0415  # as above

    connection = aiosqlite.connect(*args, **options | {"factory": SqliteConnection})
    inside: Any = connection  # nothing of it is public: where its calls wait, and where they run
    if patched_by() is None:
        inside._thread.daemon = True  # noqa: SLF001  # as SQLAlchemy has it
        return connection
    calls: SimpleQueue[Any] = SimpleQueue()
    inside._tx = calls  # noqa: SLF001  # as above
    inside._thread = RealThread(lambda: run_calls(calls))  # noqa: SLF001  # as above
    return connection


class RealThread:
    """
    A thread of the operating system in a process whose threads are patched: what aiosqlite needs of one.

    It ends with its process, as a daemon.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._target = run
        self._started = self._ended = False

    def start(self) -> None:
        """
        Begin.
        """
        self._started = True
        unpatched("start_new_thread")(self._run, ())

    def is_alive(self) -> bool:
        """
        Return whether it runs.
        """
        return self._started and not self._ended

    def join(self, timeout_s: float | None = None) -> None:
        """
        Wait until it has ended, at most for a while; other greenlets go on.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._started and not self._ended and (until_s is None or time.monotonic() < until_s):
            time.sleep(POLL_S)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended = True
            if patched_by() == "gevent":
                import gevent  # noqa: PLC0415  # only where it is used already

                # A lock of greenlets that it had to wait for, such as one of logging, has made one.
                gevent.get_hub().destroy(destroy_loop=True)
