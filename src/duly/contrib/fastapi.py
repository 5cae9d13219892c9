"""
FastAPI and Starlette: an app that is open as long as theirs, with a worker inside if wanted.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from duly.logs import BRIEF, describe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from duly.app import Duly

log = logging.getLogger("duly.contrib")


def lifespan(
    app: Duly,
    *,
    work: bool = False,
    concurrency: int | None = None,
    topics: Sequence[str] | None = None,
    tracebacks: bool = False,
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """
    A lifespan for ``FastAPI(lifespan=…)`` that opens *app* and closes it.
    """
    return lambda _: opened(app, work=work, concurrency=concurrency, topics=topics, tracebacks=tracebacks)


@asynccontextmanager
async def opened(
    app: Duly,
    *,
    work: bool = False,
    concurrency: int | None = None,
    topics: Sequence[str] | None = None,
    tracebacks: bool = False,
) -> AsyncIterator[None]:
    """
    Open *app*, with *work* also run its jobs on this event loop, and drain and close in the end.

    For a lifespan of your own.  With *tracebacks* those of failures are logged and kept, as `Duly.work` does.

    Raises:
        StoreUnavailable, ServerUnsuitable, LayoutMismatch: It cannot be opened.
        UsageError: It shall work and has no handler.
    """
    async with app:
        if not work:
            yield
            return
        stop = asyncio.Event()
        worker = asyncio.create_task(
            app.work(concurrency=concurrency, topics=topics, stop=stop, tracebacks=tracebacks)
        )
        worker.add_done_callback(_tell)
        # What is wrong from the start, such as having no handler, is known after its first step.
        await asyncio.sleep(0)
        if worker.done():
            await worker
        try:
            yield
        finally:
            stop.set()
            await worker


def _tell(worker: asyncio.Task[None]) -> None:
    error = None if worker.cancelled() else worker.exception()
    if error is not None:
        # The error itself is raised when the server ends; whoever watches should know before.
        log.critical(
            "the worker inside this server ended, jobs are no longer run here: %s",
            describe(error),
            exc_info=error,
            extra=BRIEF,
        )
