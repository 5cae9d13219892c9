"""
The event loop that runs here, or one sentence that says what to do without it.
"""

from __future__ import annotations

import _thread
import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """
    Return the event loop of asyncio that runs in this thread.

    Raises:
        UsageError: None does, for instance under trio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    if in_trio():
        raise UsageError(
            "trio runs here, and duly awaits on asyncio: use asyncio, or call app.sync in a thread "
            "(trio.to_thread.run_sync)"
        )
    raise UsageError(
        "no event loop of asyncio runs here: await this within asyncio.run(…), or call the same on app.sync"
    )


def start_beside(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """
    Start a task on the loop that runs here which nobody has to wait for: a loop that is only closed leaves it
    unfinished, without a word.
    """
    task = asyncio.get_running_loop().create_task(coroutine)
    # As asyncio's own `gather` does it.  A task of another kind of loop may know no such word.
    with suppress(AttributeError):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # as above
    return task


class OneLoop:
    """
    The event loop that connections belong to: the first that uses them, until it is closed.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """
        Refuse a call on another loop, where it would wait for ever.

        Raises:
            UsageError: It is one.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise UsageError(
                "this was connected on another event loop, which still runs: ask the app for it on this one, "
                "for instance with `await app.views()`"
            )
        self._loop = loop


def loop_if_any() -> asyncio.AbstractEventLoop | None:
    """
    Return the event loop of asyncio that runs in this thread, None if none does.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def in_trio() -> bool:
    """
    Return whether trio runs in this thread.
    """
    # Who runs it has imported it; another thread may be about to.
    in_trio_run = getattr(sys.modules.get("trio.lowlevel"), "in_trio_run", None)
    return in_trio_run is not None and bool(in_trio_run())


def patched_by() -> str | None:
    """
    Return the library that has made greenlets of the threads of this process, None if none has.
    """
    # Who patches has imported it.
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        return "gevent"
    return "eventlet" if eventlet is not None and eventlet.is_monkey_patched("thread") else None


def unpatched(name: str) -> Any:
    """
    Return what `_thread` calls *name*, as it was before a library made greenlets of threads.
    """
    match patched_by():
        case "gevent":
            return sys.modules["gevent.monkey"].get_original("_thread", name)
        case "eventlet":
            return getattr(sys.modules["eventlet.patcher"].original("_thread"), name)
    return getattr(_thread, name)
