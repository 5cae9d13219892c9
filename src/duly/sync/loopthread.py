"""
A thread that runs an event loop for callers that have none.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from duly.errors import OutcomeUnknown, StoreUnavailable, UsageError
from duly.loops import in_trio, loop_if_any
from duly.tracebacks import NOT_REACHED, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

T = TypeVar("T")
P = ParamSpec("P")

END_S = 3.0  #: how long the end of the interpreter waits for connections to be closed

#: Every loop that runs, and in a forked child also those of its parent, which must not be freed there:
#: closing them would take the parent's sockets out of the epoll set that both share.
_KEPT: set[LoopThread] = set()


class _Threads(ThreadPoolExecutor):
    """
    The threads of a loop for calls that block.

    At the end of the interpreter no thread can be started and no executor takes work, yet connections are
    closed then: what is asked for so late runs on the loop's own thread.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """
        Run *fn* in a thread, or here and now where there can be no other.
        """
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            pass
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # as a thread of an executor passes it on
            done.set_exception(error)
        return done


class LoopThread:
    """
    A daemon thread with an event loop, which ends with its process, its owner, or by `end`.
    """

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """
        Start; *close* is called on the loop before it ends.

        Raises:
            UsageError: The interpreter is ending, and no thread can be started any more.
        """
        self.pid = os.getpid()
        self._close = close
        self._calls: set[Future[Any]] = set()
        self._over = False
        self._is_last = False
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event
        try:
            self._begin()
        except RuntimeError as error:
            raise UsageError(
                f"app.sync cannot begin here ({error}): call it before the program ends, not in a function "
                "that runs at its exit"
            ) from None
        _KEPT.add(self)

    # -- how a thread is started and waited for; see `duly.sync.greenlets` for another way ------------------

    def _begin(self) -> None:
        self._started = threading.Event()
        threads = _Threads(thread_name_prefix="duly-sync")
        self._thread = threading.Thread(target=self._run, args=(threads,), name="duly-sync", daemon=True)
        self._thread.start()
        self._started.wait()

    def _tell_begun(self) -> None:
        self._started.set()

    def _is_alive(self) -> bool:
        return self._thread.is_alive()

    def _join(self, timeout_s: float | None) -> None:
        self._thread.join(timeout_s)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def new_queue(self) -> SimpleQueue[Any]:
        """
        A queue that the loop puts into, and a caller takes from.
        """
        return SimpleQueue()

    # -----------------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """
        Whether it runs, and in this process: threads do not survive a fork.
        """
        return self.pid == os.getpid() and self._is_alive() and not self._ending.is_set()

    def call(
        self, coroutine: Coroutine[Any, Any, T], meanwhile: Callable[[Future[T]], None] | None = None
    ) -> T:
        """
        Run *coroutine* on the loop, with the context of the caller, and wait for it.

        What the caller has to do *meanwhile* returns when it is done.

        Raises:
            StoreUnavailable, OutcomeUnknown: The loop was ended by another thread.
        """
        try:
            future = self._submit(coroutine)
        except RuntimeError as error:
            coroutine.close()
            raise StoreUnavailable("app.sync was closed by another thread; nothing was sent") from error
        self._calls.add(future)
        if self._over:
            future.cancel()  # the loop ended before it could begin
        try:
            if meanwhile is not None:
                meanwhile(future)
            return future.result()
        except CancelledError as error:
            if self._is_last and threading.current_thread().daemon:
                # The interpreter ends, and daemon threads with it, in the middle of whatever they do: an
                # error would only be printed below the last line of the program.
                threading.Event().wait()
            raise OutcomeUnknown(
                "app.sync was closed by another thread during the call; calling again is safe"
            ) from error
        except NOT_REACHED as error:
            raise shorten(error) from None
        except BaseException:
            future.cancel()  # Ctrl-C: whoever waited is gone.  Of no effect once it is done.
            raise
        finally:
            self._calls.discard(future)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """
        Run *coroutine* on the loop, and do not wait for it.
        """
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def ask_to_end(self) -> None:
        """
        End soon, without waiting for it.
        """
        if self.pid == os.getpid():
            with suppress(RuntimeError):  # the loop is closed: it has ended already
                self._loop.call_soon_threadsafe(self._ending.set)

    def end_with_interpreter(self) -> None:
        """
        End soon, for good: no thread is left that could go on.
        """
        self._is_last = True
        self.ask_to_end()

    def end(self, timeout_s: float | None = None) -> None:
        """
        End, and return when that is done, or after *timeout_s*.
        """
        self.ask_to_end()
        if self.pid == os.getpid():
            self._join(timeout_s)

    def _run(self, threads: ThreadPoolExecutor) -> None:
        # Not by asyncio.Runner: it ends the loop's threads from a thread of its own, which cannot be started
        # at the end of the interpreter, since Python 3.12.
        loop = asyncio.new_event_loop()
        loop.set_default_executor(threads)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve())
            # Calls that came while connections were closed.
            loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            threads.shutdown()
        self._over = True
        for future in list(self._calls):
            future.cancel()
        _KEPT.discard(self)

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._tell_begun()
        await self._ending.wait()
        # Calls first: one that goes on would open connections behind the back of who closes them.
        await _cancel(asyncio.all_tasks() - {asyncio.current_task()})
        # A package that needs a thread of its own to close, as drivers of databases do, cannot have one at
        # the end of the interpreter; what it holds ends with us.
        with suppress(RuntimeError):
            await self._close()


async def _cancel(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    calls = [task for task in tasks if task is not None]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def forbid_running_loop() -> None:
    """
    Raise if this thread runs an event loop, which a blocking call would hold up.

    Raises:
        UsageError: It does.
    """
    if loop_if_any() is not None:
        raise UsageError(
            "app.sync blocks, and this thread runs an event loop: await the same method of the app itself, "
            "or call this in a thread (asyncio.to_thread)"
        )
    if in_trio():
        raise UsageError(
            "app.sync blocks, and this thread runs trio: call this in a thread (trio.to_thread.run_sync)"
        )


def _end_all() -> None:
    mine = [thread for thread in list(_KEPT) if thread.usable]
    for thread in mine:
        thread.end_with_interpreter()
    for thread in mine:
        thread.end(END_S)


atexit.register(_end_all)
