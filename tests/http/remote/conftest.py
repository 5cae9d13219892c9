"""
Producers: straight to the server, through the service, and over a wire that loses answers.
"""

from __future__ import annotations

import httpx
import pytest

from duly import Duly
from tests.http.remote.kit import with_handlers
from tests.http.wire import wire_to


@pytest.fixture(params=["redis", "http"])
def kind(request):
    return request.param


@pytest.fixture
async def producer(kind, request, app, url):
    """
    An app that sends: straight to the server, or through the service.
    """
    settings = {"namespace": app.settings.namespace} if kind == "redis" else {}
    async with Duly(app.settings.url if kind == "redis" else url, **settings) as producer:
        yield with_handlers(producer)


@pytest.fixture
async def remote(url):
    async with Duly(url) as remote:
        yield with_handlers(remote)


@pytest.fixture
async def wire(url):
    async with wire_to(httpx.URL(url).port) as wire:
        yield wire


@pytest.fixture
async def over(wire):
    """
    A producer at the other end of a wire that may lose answers.
    """
    async with Duly(wire.url) as remote:
        wire.seen.clear()
        yield with_handlers(remote)
