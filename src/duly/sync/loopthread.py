"""
A thread that runs an event loop for callers that have none.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from duly.errors import OutcomeUnknown, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

END_S = 3.0  #: how long the end of the interpreter waits for connections to be closed

#: Every loop that runs, and in a forked child also those of its parent, which must not be freed there:
#: closing them would take the parent's sockets out of the epoll set that both share.
_KEPT: set[LoopThread] = set()


class LoopThread:
    """
    A daemon thread with an event loop, which ends with its process, its owner, or by `end`.
    """

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """
        Start; *close* is called on the loop before it ends.
        """
        self.pid = os.getpid()
        self._close = close
        self._calls: set[Future[Any]] = set()
        self._over = False
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-sync", daemon=True)
        self._thread.start()
        self._started.wait()
        _KEPT.add(self)

    @property
    def usable(self) -> bool:
        """
        Whether it runs, and in this process: threads do not survive a fork.
        """
        return self.pid == os.getpid() and self._thread.is_alive() and not self._ending.is_set()

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
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
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
            raise OutcomeUnknown(
                "app.sync was closed by another thread during the call; calling again is safe"
            ) from error
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

    def end(self, timeout_s: float | None = None) -> None:
        """
        End, and return when that is done, or after *timeout_s*.
        """
        self.ask_to_end()
        if self.pid == os.getpid():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())
        self._over = True
        for future in list(self._calls):
            future.cancel()
        _KEPT.discard(self)

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._ending.wait()
        # Calls first: one that goes on would open connections behind the back of who closes them.
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        # The end of the interpreter leaves no threads to close an embedded server in; its locks end with us.
        with suppress(RuntimeError):
            await self._close()


def forbid_running_loop() -> None:
    """
    Raise if this thread runs an event loop, which a blocking call would hold up.

    Raises:
        UsageError: It does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "app.sync blocks, and this thread runs an event loop: await the same method of the app itself, "
        "or call this in a thread (asyncio.to_thread)"
    )


def _end_all() -> None:
    mine = [thread for thread in list(_KEPT) if thread.usable]
    for thread in mine:
        thread.ask_to_end()
    for thread in mine:
        thread.end(END_S)


atexit.register(_end_all)
