"""
Run something that a signal ends, tidily: the first one cancels, and what follows is not interrupted again.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, TypeVar

from duly.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(main: Coroutine[Any, Any, T]) -> T | int:
    """
    What *main* returned, or the exit code of an interrupted command if a signal ended it first.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)
    heard: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        # Tidying up takes a moment, and a second Ctrl-C must not leave anything behind.
        if not heard:
            heard.append(number)
            task.cancel()

    for number in ENDING:
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not heard:
            raise
        return INTERRUPTED
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
            if heard:
                # All is said and done: one more while the process ends must not change its exit code.
                signal.signal(number, signal.SIG_IGN)
