"""
FastAPI: the app is open as long as the server is, and may work inside of it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from duly import Duly, StoreUnavailable, UsageError
from duly.contrib.fastapi import lifespan, opened
from tests.eventually import eventually


@pytest.fixture
def queue(valkey, namespace) -> Duly:
    app = Duly(valkey.url, namespace=namespace, drain_grace=0.2)

    @app.handler("greet")
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    return app


def make_api(queue: Duly, **options) -> FastAPI:
    api = FastAPI(**options)

    @api.post("/greet/{name}", status_code=202)
    async def greet(name: str) -> dict[str, str]:
        return {"id": (await queue.enqueue("greet", name, id=name)).id}

    @api.get("/greet/{name}")
    async def greeting(name: str) -> str:
        return await queue.job("greet", name).result(timeout=30)

    return api


@asynccontextmanager
async def served(api: FastAPI):
    """
    The API between the start and the end of a server, which is when a lifespan is.
    """
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as client,
    ):
        yield client


async def test_a_worker_inside_the_server_runs_what_its_routes_send(queue):
    async with served(make_api(queue, lifespan=lifespan(queue, work=True, concurrency=4))) as client:
        assert 202 == (await client.post("/greet/Ada")).status_code
        assert "Hello, Ada!" == (await client.get("/greet/Ada")).json()

        async def known() -> None:
            # A worker says that it is there in a thread of its own: its first job may have ended by then.
            workers = (await (await queue.views()).stats()).workers
            assert [4] == [worker["concurrency"] for worker in workers]

        await eventually(known, 60)
    assert queue.loop is None


async def test_without_a_worker_jobs_wait_for_one(queue):
    async with served(make_api(queue, lifespan=lifespan(queue))) as client:
        assert queue.loop is not None
        await client.post("/greet/Ada")
        assert "ready" == (await queue.job("greet", "Ada").get()).state.name
    assert queue.loop is None


async def test_it_fits_into_a_lifespan_of_your_own(queue):
    said = []

    @asynccontextmanager
    async def mine(api: FastAPI):
        said.append("begin")
        async with opened(queue, work=True, topics=["greet"]):
            yield
        said.append("end")

    async with served(make_api(queue, lifespan=mine)) as client:
        await client.post("/greet/Ada")
        assert "Hello, Ada!" == (await client.get("/greet/Ada")).json()
    assert ["begin", "end"] == said


async def test_a_server_that_cannot_work_does_not_start(queue):
    queue.remove_handler("greet")
    with pytest.raises(UsageError, match="there is no handler"):
        async with served(make_api(queue, lifespan=lifespan(queue, work=True))):
            pytest.fail("it started")
    away = Duly("unix:///nowhere/at/all.sock")
    with pytest.raises(StoreUnavailable):
        async with served(make_api(away, lifespan=lifespan(away))):
            pytest.fail("it started")


async def test_a_worker_that_ends_by_itself_is_told_of_and_ends_the_server_with_its_error(queue, caplog):
    async def die(**_) -> None:
        await asyncio.sleep(0.01)
        raise RuntimeError("worn out")

    queue.work = die
    with pytest.raises(RuntimeError, match="worn out"):
        async with served(make_api(queue, lifespan=lifespan(queue, work=True))):
            while not caplog.records:
                await asyncio.sleep(0.01)
    [record] = caplog.records
    assert "jobs are no longer run here: RuntimeError at test_fastapi.py:" in record.getMessage()
    assert record.getMessage().endswith(": worn out")
    assert RuntimeError is record.exc_info[0]
