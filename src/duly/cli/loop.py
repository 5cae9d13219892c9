"""
Run a coroutine on the fastest event loop there is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """
    Run *main* to its end.
    """
    try:
        import uvloop  # an accelerator: used where it is there
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
