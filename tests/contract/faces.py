"""
The faces of the queue: every way that a program may use one, opened for one test.
"""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from duly import Duly
from duly.http.api import api
from duly.record.database import Database, sync_engine
from tests.contract.awaited import Awaited, in_thread
from tests.contract.handlers import declare
from tests.contract.host import app_of, deliver, work
from tests.http.remote.kit import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from typing import TypeAlias

    #: Asks for what the tests of a process share: a server, a database, a process.
    Shared: TypeAlias = Callable[[str], Any]

SHARDS = 3  #: of the faces that have several


@dataclass(frozen=True)
class Opened:
    """
    A queue of one test.
    """

    queue: Any  #: what the test calls: a `Duly`, or what behaves as one
    working: Callable[[], AbstractAsyncContextManager[Any]]  #: runs a worker while the block runs
    delivering: Callable[[], AbstractAsyncContextManager[Any]]  #: delivers callbacks while the block runs
    transaction: Callable[[], AbstractAsyncContextManager[Any]]  #: a session of the caller
    serving: Callable[[], AbstractAsyncContextManager[str]]  #: gives the URL of a service of the queue
    beside: Duly  #: an app of the same queue, on its own server: for what no user of a face can do


@dataclass(frozen=True)
class Face:
    """
    A way to use the queue.
    """

    name: str
    how: str  #: how a program gets it
    about: str
    open: Callable[[Shared, str, Path], AbstractAsyncContextManager[Opened]]
    like: Face | None = None  #: whose marks hold for it, too


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[AsyncSession]:
    """
    A session for an app that is awaited.
    """
    database = Database(url)
    try:
        async with AsyncSession(database.engine) as session:
            yield session
    finally:
        await database.aclose()


@asynccontextmanager
async def _blocking_session(url: str) -> AsyncIterator[Any]:
    """
    A session for the blocking twin, awaited as that is.
    """
    engine = sync_engine(url)
    try:
        async with Awaited(Session(engine)) as session:
            yield session
    finally:
        engine.dispose()


@asynccontextmanager
async def _no_session() -> AsyncIterator[AsyncSession]:
    """
    A session where there is no record that it could be one of.
    """
    async with AsyncSession() as session:
        yield session


def _direct(
    *, shards: int = 1, record: Callable[[Shared, Path], str] | None = None, twin: bool = False
) -> Any:
    """
    A face whose app speaks to the server itself.
    """

    @asynccontextmanager
    async def open_(shared: Shared, namespace: str, folder: Path) -> AsyncIterator[Opened]:
        url = "" if record is None else record(shared, folder)
        more = {"record": url} if url else {}
        async with app_of(shared("valkey").url, namespace, shards=shards, **more) as app:
            try:
                yield Opened(
                    queue=Awaited(app.sync) if twin else app,
                    working=lambda: work(app),
                    delivering=lambda: deliver(app),
                    transaction=partial(_blocking_session if twin else _session, url) if url else _no_session,
                    serving=lambda: serving(api(app)),
                    beside=app,
                )
            finally:
                await in_thread(app.sync.close)

    return open_


def _sqlite(shared: Shared, folder: Path) -> str:
    file = folder / "record.db"
    shutil.copy(shared("migrated_file"), file)
    return f"sqlite:///{file}"


def _postgresql(shared: Shared, _: Path) -> str:
    # Rows name their namespace, so the tests of a process share a database.
    url: str = shared("postgresql_record")
    return url


def _mariadb(shared: Shared, _: Path) -> str:
    url: str = shared("mariadb_record")
    return url


def _http(record: Callable[[Shared, Path], str] | None = None) -> Any:
    """
    The HTTP client of a service in this process.
    """

    @asynccontextmanager
    async def open_(shared: Shared, namespace: str, folder: Path) -> AsyncIterator[Opened]:
        server = shared("valkey").url
        more = {} if record is None else {"record": record(shared, folder)}

        @asynccontextmanager
        async def other(do: Callable[[Duly], AbstractAsyncContextManager[str]]) -> AsyncIterator[None]:
            async with app_of(server, namespace, **more) as app, do(app):
                yield

        async with (
            app_of(server, namespace, **more) as near,
            serving(api(near)) as url,
            declare(Duly(url)) as app,
        ):
            yield Opened(
                queue=app,
                working=lambda: other(work),
                delivering=lambda: other(deliver),
                transaction=_no_session,
                serving=lambda: nullcontext(url),
                beside=near,
            )

    return open_


@asynccontextmanager
async def _apart(shared: Shared, namespace: str, _: Path) -> AsyncIterator[Opened]:
    service, workplace = shared("service_host"), shared("worker_host")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(service.open("serve", namespace))
        app = await stack.enter_async_context(declare(Duly(url)))
        beside = app_of(shared("valkey").url, namespace, shards=SHARDS)
        yield Opened(
            queue=app,
            working=lambda: workplace.open("work", namespace),
            delivering=lambda: workplace.open("deliver", namespace),
            transaction=_no_session,
            serving=lambda: nullcontext(url),
            beside=await stack.enter_async_context(beside),
        )


PLAIN = Face("plain", "`Duly(url)`", "one shard, the app and its worker in one process", _direct())
TWIN = Face("twin", "`Duly(url).sync`", "the blocking twin", _direct(twin=True))
SHARDED = Face(
    "shards", f"`Duly(url, shards={SHARDS})`", f"a namespace of {SHARDS} shards", _direct(shards=SHARDS)
)
SQLITE = Face("sqlite", '`Duly(url, record="sqlite://…")`', "a record on SQLite", _direct(record=_sqlite))
POSTGRESQL = Face(
    "postgresql",
    f'`Duly(url, record="postgresql://…", shards={SHARDS})`',
    f"a record on PostgreSQL, {SHARDS} shards",
    _direct(record=_postgresql, shards=SHARDS),
)
MARIADB = Face(
    "mariadb",
    '`Duly(url, record="mysql://…").sync`',
    "a record on MariaDB, used through the blocking twin",
    _direct(record=_mariadb, twin=True),
)
HTTP = Face("http", '`Duly("https://…")`', "the HTTP client; service and worker in the same process", _http())
HTTP_SQLITE = Face(
    "http-sqlite",
    '`Duly("https://…")`, `duly serve` with a `record`',
    "the HTTP client of a service with a record on SQLite; service and worker in the same process",
    _http(_sqlite),
)
APART = Face(
    "apart",
    '`Duly("https://…")`, `duly serve`, `duly work`',
    f"the HTTP client; the service and the workers are other processes, {SHARDS} shards",
    _apart,
)

FACES = (PLAIN, TWIN, SHARDED, SQLITE, POSTGRESQL, MARIADB, HTTP, HTTP_SQLITE, APART)
#: The combinations of database and way that the faces above leave out: only with `--long`, and in no table.
MORE_FACES = (
    Face("postgresql-twin", "", "", _direct(record=_postgresql, twin=True), like=MARIADB),
    Face("mariadb-shards", "", "", _direct(record=_mariadb, shards=SHARDS), like=POSTGRESQL),
    Face("http-postgresql", "", "", _http(_postgresql), like=HTTP_SQLITE),
    Face("http-mariadb", "", "", _http(_mariadb), like=HTTP_SQLITE),
)
RECORDS = (SQLITE, POSTGRESQL, MARIADB, HTTP_SQLITE)
NO_RECORD = (PLAIN, TWIN, SHARDED, HTTP, APART)
OVER_HTTP = (HTTP, HTTP_SQLITE, APART)
