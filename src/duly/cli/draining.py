"""
A process that works until it is told to end: the first signal drains it, the second gives back what runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from duly.cli.burst import until_idle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine

    from duly.app import Duly

STALLED = 70  #: exit code of a worker that made no progress: a supervisor should start it again


async def drained(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]], log: logging.Logger, *, running: str
) -> None:
    """
    Work until SIGTERM or Ctrl-C, and finish what is *running*; it is given back at a second one.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = loop.create_task(work(stop))

    def on_signal() -> None:
        if stop.is_set():
            log.warning("second signal: giving %s back at once", running)
            task.cancel()
        else:
            log.info("draining: no more jobs are claimed")
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await task
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    log.info("drained")


@asynccontextmanager
async def stopping_when_idle(
    stop: asyncio.Event, app: Duly, topics: Collection[str], log: logging.Logger
) -> AsyncIterator[None]:
    """
    Set *stop* as soon as no job of *topics* is left to run.
    """

    async def watch() -> None:
        await until_idle(app, topics)
        log.info("nothing is due, ready or running")
        stop.set()

    idle = asyncio.create_task(watch())
    try:
        yield
    finally:
        idle.cancel()
        await asyncio.gather(idle, return_exceptions=True)


def leave(_names: list[str]) -> None:
    """
    End a process that makes no progress: nothing in it can be relied on any more, so nothing is tidied up.

    Leases run out by themselves.
    """
    logging.shutdown()
    os._exit(STALLED)
