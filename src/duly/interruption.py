"""
What is thrown into a task from outside, told from what the code that it awaits raises by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any


def is_interruption(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """
    Return whether *error* ends *task* itself: its cancellation, or the end of its coroutine.

    Code of users may raise both as well, and then they are failures like any other.
    """
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    # Python closes a coroutine that nobody will run any more, and that is never done by its own task.
    return isinstance(error, GeneratorExit) and _current_task() is not task


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None
