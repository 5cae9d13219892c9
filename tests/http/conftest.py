"""
The service on a real server: in this process for most tests, behind a real port where the wire matters.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from duly import Duly
from duly.canary import Canary
from duly.http.api import api
from duly.http.serve import listen, server_of
from duly.http.settings import ServiceSettings


@pytest.fixture(scope="session", autouse=True)
def _patient():
    """
    Let the canary of every service take its time: on a busy machine one is slow, and the queue is well.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Canary.__init__.__kwdefaults__, "limit_s", 60.0)
        yield


@pytest.fixture
def app(valkey, namespace):
    return Duly(valkey.url, namespace=namespace)


@pytest.fixture
def serving(app):
    """
    Open the service with some settings: `async with serving(rate=1) as client`.
    """

    @asynccontextmanager
    async def open_(**settings):
        service = api(app, ServiceSettings(**settings))
        async with service.router.lifespan_context(service):
            transport = httpx.ASGITransport(service, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", timeout=30
            ) as client:
                yield client

    return open_


@pytest.fixture
async def client(serving):
    async with serving() as client:
        yield client


@pytest.fixture
def served(app):
    """
    Open the service behind a port of its own: `async with served(max_connections=1) as (url, server)`.
    """

    @asynccontextmanager
    async def open_(queue=app, **settings):
        place = listen("127.0.0.1", 0)
        server = server_of(api(queue, ServiceSettings(**settings)), 1)
        serving = asyncio.create_task(server.serve([place]))
        while not server.started:
            await asyncio.sleep(0.01)
            assert not serving.done(), serving.result()
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}", server
        finally:
            server.should_exit = True
            await serving

    return open_


@pytest.fixture
async def url(served):
    """
    The service behind a port of its own.
    """
    async with served() as (url, _):
        yield url


def problem(response, status, kind):
    """
    Check that an answer is a problem of one kind, and return its document.
    """
    assert (status, "application/problem+json") == (response.status_code, response.headers["content-type"]), (
        response.text
    )
    document = response.json()
    assert f"urn:duly:problem:{kind}" == document["type"], document
    assert status == document["status"]
    assert document["title"]
    assert document["detail"]
    return document
