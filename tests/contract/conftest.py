"""
Fixtures of the contract: each test runs once on every face, on servers that the tests of a process share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from duly import Unsupported
from duly.canary import Canary
from duly.record import absence
from duly.record.schema import migrate
from tests.contract.faces import FACES, MORE_FACES, SHARDS
from tests.contract.host import Host
from tests.contract.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from duly import Duly
    from tests.contract.faces import Face, Opened
    from tests.databases import Database
    from tests.servers import Server


#: What a test raises on the faces of each mark.  A fault that shows itself in another way is not expected.
RAISED = {"unsupported": Unsupported, "broken": AssertionError, "differs": AssertionError}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    Run each test on every face; where one is marked, with the one ending that the mark promises.
    """
    if "face" in metafunc.fixturenames:
        faces = (*FACES, *MORE_FACES) if metafunc.config.getoption("long") else FACES
        metafunc.parametrize(
            "face",
            [pytest.param(face, id=face.name, marks=_promised(face, metafunc.definition)) for face in faces],
        )


def _promised(face: Face, test: pytest.Function) -> list[pytest.MarkDecorator]:
    """
    What the marks of a test say of one face: strict, so that none outlives its reason.
    """
    return [
        pytest.mark.xfail(reason=mark.kwargs["reason"], raises=raises, strict=True)
        for name, raises in RAISED.items()
        for mark in test.iter_markers(name)
        if (face.like or face) in mark.args
    ]


# -- what the tests of a process share --------------------------------------------------------------------


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A SQLite file with the tables of a record, to be copied.
    """
    file = tmp_path_factory.mktemp("record") / "record.db"
    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def postgresql_record(postgresql: Database) -> str:
    return postgresql.migrated()


@pytest.fixture(scope="session")
def mariadb_record(mariadb: Database) -> str:
    return mariadb.migrated()


@pytest.fixture(scope="session")
def service_host(valkey: Server) -> Iterator[Host]:
    host = Host(valkey.url, SHARDS)
    yield host
    host.stop()


@pytest.fixture(scope="session")
def worker_host(valkey: Server) -> Iterator[Host]:
    host = Host(valkey.url, SHARDS)
    yield host
    host.stop()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Let no push be left to a relay that does not run, and no service be unready, on a machine that is busy.
    """
    monkeypatch.setattr(absence, "ANSWERS_WITHIN_S", 4.0)
    monkeypatch.setitem(Canary.__init__.__kwdefaults__, "limit_s", 60.0)


# -- what each test has -----------------------------------------------------------------------------------


@pytest.fixture
async def opened(
    face: Face, request: pytest.FixtureRequest, namespace: str, tmp_path: Path
) -> AsyncIterator[Opened]:
    async with face.open(request.getfixturevalue, namespace, tmp_path) as opened:
        yield opened


@pytest.fixture
def queue(opened: Opened) -> Any:
    """
    The queue as its users have it: a `Duly`, or what behaves as one.
    """
    return opened.queue


@pytest.fixture
def working(opened: Opened) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """
    A worker while the block runs: `async with working():`.
    """
    return opened.working


@pytest.fixture
def delivering(opened: Opened) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """
    A deliverer of callbacks while the block runs: `async with delivering():`.
    """
    return opened.delivering


@pytest.fixture
def transaction(opened: Opened) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """
    A session of the caller on the record's database: `async with transaction() as session:`.
    """
    return opened.transaction


@pytest.fixture
async def worker(opened: Opened) -> AsyncIterator[Worker]:
    """
    A worker over HTTP, of a service of the queue.
    """
    async with opened.serving() as url, Worker(url) as worker:
        yield worker


@pytest.fixture
def beside(opened: Opened) -> Duly:
    """
    An app of the same queue, on its own server: for what no user of a face can do, such as damage.
    """
    return opened.beside


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """
    A file that handlers wait for.
    """
    return tmp_path / "flag"
