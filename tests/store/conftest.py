"""
Fixtures of store tests: a look behind the store's back, and a namespace on the server's own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from duly.namespace import create
from duly.store import Store
from tests.store import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from duly.connection import Link
    from tests.servers import Server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """
    A client that is not the store's, and returns replies as the server sent them.
    """
    client = snapshot.client_of(server.socket)
    yield client
    client.close()


@pytest.fixture
def look(raw: redis.Redis, store: Store) -> Callable[..., snapshot.Snapshot]:
    """
    Everything that the shard holds for some topics, checked: each job is in exactly one place.
    """

    def look(*topics: str, check: bool = True) -> snapshot.Snapshot:
        shard = snapshot.take(raw, store.keys[0], topics or ("mail",))
        if check:
            snapshot.check(shard)
        return shard

    return look


@pytest.fixture
async def live(link: Link, namespace: str) -> Store:
    """
    A store on the server's clock.
    """
    await create(link, f"{namespace}live", 1)
    return Store(link, namespace=f"{namespace}live")
