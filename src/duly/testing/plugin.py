"""
Fixtures for pytest.  Loaded for everybody who has duly installed, so nothing is imported until one is used.

duly_server   the URL of a real server for the run; override it to use one of your own
duly_app      the app under test; override it to return yours
duly          a `TestBed` with that app, new for each test
duly_for      a function that makes one for any app: ``duly_for(app, clock="server")``

Outside of these, no test connects to the queue that an app is configured with, unless it says so: with the
marker ``real_queue``, or `duly.testing.real_queue`.
"""

from __future__ import annotations

import functools
import inspect
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from duly.testrun import TEST_RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from duly.app import Duly
    from duly.testing.bed import TestBed

LINGER_S = 0.5  #: how long the server outlasts the run

_beds: list[TestBed] = []  #: of the test that is running


def pytest_configure(config: pytest.Config) -> None:
    """
    Refuse configured queues: while tests are collected, and until the process ends.
    """
    config.addinivalue_line(
        "markers", "real_queue: the test may reach the queue that its app is configured with"
    )
    TEST_RUN.begin()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """
    Allow them to a test that says so, and to its fixtures.
    """
    if item.get_closest_marker("real_queue") is None:
        return (yield)
    TEST_RUN.open()
    try:
        return (yield)
    finally:
        TEST_RUN.close()


# An app is connected in the loop of its test, and has to be disconnected there before that is closed.


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """
    Disconnect apps at the end of an async test: anyio closes the loop right behind it.
    """
    test = pyfuncitem.obj
    if "duly_for" not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(test):
        return (yield)

    @functools.wraps(test)
    async def test_and_disconnect(*args: Any, **kwargs: Any) -> None:
        try:
            await test(*args, **kwargs)
        finally:
            for bed in _beds:
                await bed.app.aclose()

    pyfuncitem.obj = test_and_disconnect
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """
    Disconnect apps before any fixture is torn down: pytest-asyncio has one that closes the loop.
    """
    for bed in _beds:
        bed.disconnect()


@pytest.fixture(scope="session")
def duly_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """
    Start a server for the run, shared by the processes of pytest-xdist; it ends with the last of them.
    """
    from duly.embedded.server import EmbeddedServer  # noqa: PLC0415  # who uses no fixture pays nothing
    from duly.errors import DulyError  # noqa: PLC0415  # as above

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each has a folder of its own below that of the run
    server = EmbeddedServer(folder / "duly-server", "everysec", linger_s=LINGER_S)
    try:
        url = server.start()
    except DulyError as error:
        pytest.fail(
            f"no server for tests: {error}\n"
            "To use one of your own, override the fixture duly_server and return its URL.",
            pytrace=False,
        )
    TEST_RUN.add_server(url)
    # However this process ends: the server belongs to the directory and ends when nobody holds its lock.
    yield url
    server.close()


@pytest.fixture
def duly_app() -> Duly:
    """
    Make an app without handlers.  Override it to return your own.
    """
    from duly.app import Duly  # noqa: PLC0415  # who uses no fixture pays nothing
    from duly.settings import Settings  # noqa: PLC0415  # as above

    return Duly(settings=Settings())


@pytest.fixture
def duly_for(duly_server: str) -> Iterator[Callable[..., TestBed]]:
    """
    Make test beds, for any number of apps.
    """
    from duly.testing.bed import TestBed  # noqa: PLC0415  # who uses no fixture pays nothing

    with ExitStack() as stack:

        def make(app: Duly, **options: Any) -> TestBed:
            bed = TestBed(app, duly_server, **options).take()
            stack.callback(bed.give_back)
            _beds.append(bed)
            stack.callback(_beds.remove, bed)
            return bed

        yield make


@pytest.fixture
def duly(duly_for: Callable[..., TestBed], duly_app: Duly) -> TestBed:
    """
    Put the app under test into a namespace of its own, by a clock that stands still.
    """
    return duly_for(duly_app)
