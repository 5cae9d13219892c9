"""
Waiting in tests: polls an assertion instead of sleeping for a guess.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


async def eventually(check: Callable[[], Any], within_s: float = 10.0) -> Any:
    """
    Call *check* until it neither raises `AssertionError` nor returns False, and return what it returned.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            answer = check()
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is not False:
                return answer
            problem: AssertionError | None = None
        except AssertionError as error:
            problem = error
        if time.monotonic() > deadline:
            raise problem or AssertionError(f"not within {within_s} s: {inspect.getsource(check).strip()}")
        await asyncio.sleep(0.005)
