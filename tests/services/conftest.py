"""
Fixtures of service tests: apps on a real server, in namespaces of their own, and workers in this process.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from duly import Duly
from tests.eventually import eventually
from tests.servers import Server, binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

#: Nothing is found by polling: scans and blocks are minutes apart, further than any test waits.
LAZY = {"timer_scan": 300, "block": 300, "recover_scan": 300, "stall": 1200}


@pytest.fixture
def server(valkey: Server) -> Server:
    """
    Services talk to the store, and that is tested on both servers.
    """
    return valkey


@pytest.fixture
async def make_app(valkey: Server, namespace: str) -> AsyncIterator[Callable[..., Duly]]:
    apps: list[Duly] = []

    def make(url: str | None = None, **settings: Any) -> Duly:
        settings = {"namespace": namespace, "drain_grace": 0.2, "concurrency": 16} | settings
        apps.append(Duly(url or valkey.url, **settings))
        return apps[-1]

    yield make
    for app in apps:
        await app.aclose()
        await asyncio.to_thread(app.sync.close)


@pytest.fixture
def app(make_app: Callable[..., Duly]) -> Duly:
    return make_app()


@asynccontextmanager
async def working(app: Duly, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """
    A worker inside this process; drained in the end, and an error of it is an error of the test.
    """
    stop = asyncio.Event()
    task = asyncio.create_task(app.work(stop=stop, **options))
    try:
        yield task
        stop.set()
        await task
    finally:
        # Twice: the first asks to drain, the second means now.
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=1)


async def tally(handle: Any) -> tuple[str, int, int]:
    """
    The state of a job, and what was counted against it.
    """
    job = await handle.get()
    return job.state.name, job.attempts, job.crashes


async def becomes(handle: Any, state: str, within_s: float = 10.0) -> Any:
    """
    Wait until a job is in *state*, and return it.
    """

    async def check() -> Any:
        job = await handle.get()
        assert state == job.state.name, job
        return job

    return await eventually(check, within_s)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """
    A server that a test may kill and start again.
    """
    server = Server(binary("valkey"), appendfsync="always").start()
    yield server
    server.stop()
