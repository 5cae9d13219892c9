"""
Fixtures of tests of the blocking twin: an app on a real server, and a worker in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from duly import Duly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server


@pytest.fixture
def app(valkey: Server, namespace: str) -> Iterator[Duly]:
    app = Duly(valkey.url, namespace=namespace, drain_grace=0.2)
    yield app
    app.sync.close()


@contextmanager
def working(app: Duly) -> Iterator[None]:
    """
    A worker on an event loop in another thread, as `duly work` would be in another process.
    """
    stop: asyncio.Event
    loop: asyncio.AbstractEventLoop
    began = threading.Event()
    errors: list[BaseException] = []

    async def main() -> None:
        nonlocal stop, loop
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        began.set()
        async with app:
            await app.work(stop=stop)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  # an error of the worker is an error of the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    try:
        yield
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
        thread.join()
    assert [] == errors
