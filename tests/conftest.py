"""
Fixtures of all tests: a real server for the run, a namespace of its own for each test, a clock to advance.
"""

from __future__ import annotations

import itertools
import logging
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from duly.connection import Link
from duly.feed import Feed
from duly.namespace import create
from duly.store import Store
from duly.testing import TestClock, real_queue
from duly.views import Views
from tests import shards as shard_numbers
from tests.servers import Server, binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.databases import Database

_numbers = itertools.count(1)

# How long an example takes says something about the machine and nothing about the code.
settings.register_profile("duly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("duly")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="full sizes instead of small ones")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    shard_numbers.parametrize(metafunc)


#: Tests of duly are about queues, each on a server that it has started for the purpose.
_real_queue = real_queue()


def pytest_configure() -> None:
    _real_queue.__enter__()


def pytest_unconfigure() -> None:
    _real_queue.__exit__(None, None, None)


def pytest_exception_interact(call: pytest.CallInfo[object]) -> None:
    """
    Let a test whose time was over while it waited for Java spoil none of those that follow.
    """
    timed_out = call.excinfo and "from pytest-timeout" in str(call.excinfo.value)
    if timed_out and "pyspark" in sys.modules:
        from tests.spark.gateway import forget_answer

        forget_answer()


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """
    Some commands quieten duly's log for the life of their process, which here is that of all tests.
    """
    log = logging.getLogger("duly")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    server = Server(binary("valkey")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_7() -> Iterator[Server]:
    server = Server(binary("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Database]:
    yield from _started("PostgreSQL")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Database]:
    yield from _started("MariaDB")


def _started(kind: str) -> Iterator[Database]:
    from tests import databases  # packages of the record, which few tests need

    database: Database = getattr(databases, kind)()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture(params=["valkey", "redis_7"])
def server(request: pytest.FixtureRequest) -> Server:
    """
    Store tests run on both servers.
    """
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def namespace() -> str:
    return f"t{next(_numbers)}"


@pytest.fixture
def shards(request: pytest.FixtureRequest) -> int:
    """
    How many shards the namespace of this test has: see `tests.shards`.
    """
    return getattr(request, "param", 1)


@pytest.fixture(autouse=True)
def _shards_of_apps(request: pytest.FixtureRequest, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Let every app of the test and of its child processes have as many.
    """
    if shard_numbers.is_spread(request.path):
        monkeypatch.setenv("DULY_SHARDS", str(shards))


@pytest.fixture
def clock() -> TestClock:
    return TestClock(1_000_000)


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Link]:
    link = Link(server.url)
    yield link
    await link.aclose()


@pytest.fixture
async def store(link: Link, namespace: str, clock: TestClock, shards: int) -> Store:
    await create(link, namespace, shards, clock="test")
    return Store(link, namespace=namespace, shards=shards, now=clock)


@pytest.fixture
def views(store: Store) -> Views:
    return Views(store)


@pytest.fixture
def feed(store: Store) -> Feed:
    return Feed(store)
