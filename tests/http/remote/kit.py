"""
What tests of producers over HTTP share: handlers, a worker, a service in this loop.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from duly import Duly
from duly.http.serve import listen, server_of

NOT_FOUND = '404 Not Found\nContent-Type: application/problem+json\n\n{"type":"urn:duly:problem:not-found"}'


def with_handlers(app):
    @app.handler("add", max_attempts=1)
    async def add(left: int, right: int = 0) -> dict[str, int]:
        return {"sum": left + right}

    @app.handler("fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("boom")

    app.add, app.fail = add, fail
    return app


@asynccontextmanager
async def working(app):
    """
    A worker on the same queue, as in another process.
    """
    worker = with_handlers(Duly(app.settings.url, namespace=app.settings.namespace, drain_grace=0.2))
    stop = asyncio.Event()
    async with worker:
        running = asyncio.create_task(worker.work(stop=stop))
        try:
            yield worker
        finally:
            stop.set()
            await running


@asynccontextmanager
async def serving(application, port=0):
    """
    An application behind a port of its own, in this loop.
    """
    place = listen("127.0.0.1", port)
    server = server_of(application, 1)
    running = asyncio.create_task(server.serve([place]))
    while not server.started:
        await asyncio.sleep(0.01)
        assert not running.done(), running.result()
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
