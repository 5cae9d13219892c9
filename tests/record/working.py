"""
A worker in the process of the test.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from duly import Duly


@asynccontextmanager
async def working(app: Duly) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(app.work(stop=stop))
    try:
        yield
    finally:
        stop.set()
        await task
