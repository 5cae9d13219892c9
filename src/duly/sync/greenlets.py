"""
The twin in a process that gevent has patched: its loop in a real thread, its callers greenlets.

There, threads are greenlets of one real thread.  A loop in one of them would stop its callers, and a caller
that waits as threads do would stop the loop.
"""

from __future__ import annotations

import importlib
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from duly.errors import UsageError
from duly.loops import patched_by, unpatched
from duly.sync.loopthread import LoopThread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
P = ParamSpec("P")

POLL_S = 0.005


def prepare_loop(*, remote: bool) -> None:
    """
    Do what has to be done in the main thread before a loop begins; *remote* says that it will speak HTTP.
    """
    if remote and patched_by() == "gevent":
        # What it imports in its turn starts programs, which gevent does in the main thread only.
        with suppress(ImportError):
            importlib.import_module("httpcore")


def begin_loop(close: Callable[[], Coroutine[Any, Any, None]]) -> LoopThread:
    """
    Start a thread with an event loop that fits the threads of this process.

    Raises:
        UsageError: There can be none: eventlet has patched the process, or the interpreter is ending.
    """
    if patched_by() == "gevent":
        return GeventLoopThread(close)
    if patched_by() == "eventlet":
        raise UsageError(
            "app.sync cannot run where eventlet has patched threads: use threads or gevent instead "
            "(gunicorn -k gthread, gunicorn -k gevent)"
        )
    return LoopThread(close)


class HubQueue(Generic[T]):
    """
    A queue that any real thread puts into, and one greenlet takes from while others of its hub go on.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._guard = unpatched("allocate_lock")()  #: held for a few instructions, without a switch
        self._watcher: Any = None  #: of who waits

    def put(self, item: T) -> None:
        """
        Add an item.
        """
        with self._guard:
            self._items.append(item)
            if self._watcher is not None:
                self._watcher.send()

    def get(self) -> T:
        """
        Take the oldest item, waiting for it.
        """
        from gevent import get_hub  # noqa: PLC0415  # only where it is used already
        from gevent.event import Event  # noqa: PLC0415  # likewise

        woken = Event()
        # Of all that gevent has, only this may be told from another thread.  It also keeps the hub from
        # taking a caller for one that waits for ever.
        watcher = get_hub().loop.async_()
        watcher.start(woken.set)
        try:
            while True:
                with self._guard:
                    if self._items:
                        return self._items.popleft()
                    self._watcher = watcher
                woken.wait()
                woken.clear()
        finally:
            with self._guard:
                self._watcher = None
            watcher.stop()
            watcher.close()


class GreenletCall(Generic[T]):
    """
    A coroutine on the twin's loop, and a greenlet that waits for it: as much of a `Future` as is needed.

    A `Future` has locks of greenlets, which are no locks between real threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        """
        Begin.

        Raises:
            RuntimeError: The loop is closed.
        """
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._outcome: HubQueue[asyncio.Task[T] | None] = HubQueue()
        self._guard = unpatched("allocate_lock")()
        self._over = False
        self._tell: list[Callable[[Any], None]] = []
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._over:
            self._coroutine.close()
            return
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T] | None) -> None:
        with self._guard:
            if self._over:
                return
            self._over = True
        self._outcome.put(task)
        for tell in self._tell:
            tell(self)

    def add_done_callback(self, tell: Callable[[Any], None]) -> None:
        """
        Have *tell* called when it is over.
        """
        with self._guard:
            if not self._over:
                self._tell.append(tell)
                return
        tell(self)

    def cancel(self) -> None:
        """
        Let nobody wait for it any more, and end it if it goes on.
        """
        self._end(None)
        with suppress(RuntimeError):  # the loop is closed: nothing goes on
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        """
        Wait for its result, once.

        Raises:
            CancelledError: It was cancelled.
        """
        task = self._outcome.get()
        if task is None or task.cancelled():
            raise CancelledError
        return task.result()


class _Greenlets(ThreadPoolExecutor):
    """
    Calls that block, on the thread of the loop: what blocks in a greenlet lets the loop go on.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """
        Run *fn* in a greenlet.
        """
        import gevent  # noqa: PLC0415  # only where it is used already

        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # as a thread of an executor passes it on
                done.set_exception(error)

        gevent.spawn(run)
        return done


class GeventLoopThread(LoopThread):
    """
    A real thread with an event loop, for greenlets that call it.
    """

    def _begin(self) -> None:
        self._began, self._ended = unpatched("allocate_lock")(), False
        self._began.acquire()
        unpatched("start_new_thread")(self._run_all, ())
        # Without a switch to another greenlet: that one might want a lock which this one holds.
        self._began.acquire()

    def _run_all(self) -> None:
        import gevent  # noqa: PLC0415  # only where it is used already

        try:
            self._run(_Greenlets())
        finally:
            self._ended = True
            gevent.get_hub().destroy(destroy_loop=True)

    def _tell_begun(self) -> None:
        self._began.release()

    def _is_alive(self) -> bool:
        return not self._ended

    def _join(self, timeout_s: float | None) -> None:
        import gevent  # noqa: PLC0415  # only where it is used already

        until_s = None if timeout_s is None else monotonic() + timeout_s
        while not self._ended and (until_s is None or monotonic() < until_s):
            gevent.sleep(POLL_S)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        return GreenletCall(self._loop, coroutine)

    def new_queue(self) -> Any:
        """
        A queue that the loop puts into, and a caller takes from.
        """
        return HubQueue()
