"""
Fixtures of the way to Redis and back: the server, and one that a test may kill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers import Server, binary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duly.store import Store


@pytest.fixture
def server(valkey: Server) -> Server:
    """
    The store itself is tested on both servers.
    """
    return valkey


@pytest.fixture
async def store(store: Store) -> Store:
    """
    As a guard leaves it: found sound, in the first generation.
    """
    await store.approve("record", 1)
    return store


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server(binary("valkey"), appendfsync="always").start()
    yield server
    server.stop()
