"""
Fixtures of store tests: a look behind the store's back, and a namespace on the server's own clock.
"""

from __future__ import annotations

import random
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


#: What these say of jobs must hold as well for those that Spark's bulk writer sent.  The others are about how
#: the store itself sends, or about what never was an enqueue.
SENT_IN_BULK = {
    "test_audit",
    "test_callbacks",
    "test_claims",
    "test_events",
    "test_lifecycle",
    "test_promotion",
    "test_quarantine",
    "test_replies",
    "test_retention",
    "test_select",
    "test_shares",
    "test_soundness",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in SENT_IN_BULK and "server" in metafunc.fixturenames:
        ids = [pytest.HIDDEN_PARAM, "in-bulk"]
        metafunc.parametrize("sent", ["one by one", "in bulk"], ids=ids, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What is sent does not depend on the server: once is enough.
    items[:] = [item for item in items if ("redis_7", "in bulk") != _how(item)]


def _how(item: pytest.Item) -> tuple[str | None, str | None]:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("server"), params.get("sent")


@pytest.fixture(autouse=True)
def sent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """
    How all stores of a test send their jobs.
    """
    if getattr(request, "param", None) != "in bulk":
        yield
        return
    pytest.importorskip("pyspark")
    from tests.store.bulk import BulkWriter

    writer = BulkWriter(request.getfixturevalue("server").url)
    # A bound method would not be told which store it stands in for.
    monkeypatch.setattr(Store, "enqueue", lambda *given: writer.enqueue(*given))  # noqa: PLW0108  # see above
    monkeypatch.setattr(Store, "enqueue_many", lambda *given: writer.enqueue_many(*given))  # noqa: PLW0108  # likewise
    yield
    writer.close()


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
    Everything that all shards hold for some topics, checked: each job is in exactly one place.
    """

    def look(*topics: str, check: bool = True) -> snapshot.Snapshot:
        shards = [snapshot.take(raw, keys, topics or ("mail",)) for keys in store.keys]
        if check:
            for shard in shards:
                snapshot.check(shard)
        return snapshot.merged(shards)

    return look


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """
    The turns of topics and lanes follow from the nonces of claims: here the same ones in each run.
    """
    drawn = random.Random(13)  # a test, and no secret
    monkeypatch.setattr("duly.store.claims.new_nonce", lambda: drawn.randbytes(8))
    return drawn


@pytest.fixture
async def live(link: Link, namespace: str) -> Store:
    """
    A store on the server's clock.
    """
    await create(link, f"{namespace}live", 1)
    return Store(link, namespace=f"{namespace}live")
