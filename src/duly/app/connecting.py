"""
The way to and from the store: what is connected, since when, and for how long.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from duly.apikeys import KeyRing
from duly.app.declaring import Declaring
from duly.app.opening import new_store, open_record, open_remote, start_server
from duly.connection import unreachable
from duly.errors import ServerUnsuitable, UsageError
from duly.namespace import inspect, require
from duly.remote.views import RemoteViews, needs_server
from duly.remote.waiting import RemoteWaiters
from duly.store import Store
from duly.views import Views
from duly.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from duly.embedded.server import EmbeddedServer
    from duly.namespace import ServerFacts
    from duly.record.assembly import WholeRecord
    from duly.remote.store import RemoteStore
    from duly.settings import Settings

log = logging.getLogger("duly")


class Connecting(Declaring):
    """
    An app's connections: made on first use, one set for each event loop.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.facts: ServerFacts | None = None
        self.must_exist = False  #: refuse a namespace that is not there, instead of making it
        self._server: EmbeddedServer | None = None
        self._store: Store | RemoteStore | None = None
        self._record: WholeRecord | None = None
        self._unrecorded = False  #: the namespace was seen to have no record
        self._waiters: Waiters | RemoteWaiters | None = None
        self._now: Callable[[], int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: asyncio.Lock | None = None

    async def __aenter__(self) -> Self:
        """
        Connect.
        """
        await self.queue()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- what is connected --------------------------------------------------------------------------------

    async def store(self) -> Store:
        """
        The connected store.

        Raises:
            UsageError: The URL is that of an HTTP service.
            StoreUnavailable: The server cannot be reached or started.
            ServerUnsuitable, LayoutMismatch: It does not fit.
        """
        self._need_server()
        backend = await self._backend()
        assert isinstance(backend, Store)  # noqa: S101  # the URL says so
        if backend.link.before is not None:
            await backend.link.before()
        return backend

    async def queue(self) -> Store | RemoteStore | WholeRecord:
        """
        What takes jobs and moves them: the record if there is one, also while the server is away; else the
        connected store, or the HTTP service that the URL names.

        Raises:
            StoreUnavailable: It cannot be reached or started.
            ServerUnsuitable, LayoutMismatch: It does not fit.
        """
        backend = await self._backend()
        if self._record is not None:
            await self._record.agreed_if_there()
        elif isinstance(backend, Store):
            await self._need_no_record(backend)
        return self._record or backend

    async def record(self) -> WholeRecord:
        """
        The connected record, compared with the queue.

        Raises:
            UsageError: There is none.
            StoreUnavailable, RecordUnavailable: Server or database cannot be reached.
            ServerUnsuitable, LayoutMismatch: One of them does not fit.
        """
        record = await self.promises()
        await record.agreed()
        return record

    async def promises(self) -> WholeRecord:
        """
        The connected record for who writes rows in a transaction of its own, and nothing besides.

        Raises:
            UsageError: There is none.
            StoreUnavailable, RecordUnavailable: Server or database cannot be reached.
            ServerUnsuitable, LayoutMismatch: One of them does not fit.
        """
        await self._backend()
        if self._record is None:
            raise UsageError("there is no record: Duly(…, record='postgresql://…'), or DULY_RECORD")
        return self._record

    async def views(self) -> Views:
        """
        Read-only questions to the store.
        """
        backend = await self._backend()
        if self._record is not None:
            return self._record.views()
        return Views(backend) if isinstance(backend, Store) else RemoteViews(backend.link)

    async def key_ring(self) -> KeyRing:
        """
        The API keys of the namespace.

        Raises:
            UsageError: ``DULY_API_KEYS`` cannot be read.
        """
        store = await self.store()
        return KeyRing(store, keeper=None if self._record is None else self._record.keys)

    async def waiters(self) -> Waiters | RemoteWaiters:
        """
        Who waits for jobs to end.
        """
        backend = await self._backend()
        if self._waiters is None:
            elsewhere = None if self._record is None else self._record.views().get
            self._waiters = (
                Waiters(backend, elsewhere) if isinstance(backend, Store) else RemoteWaiters(backend.link)
            )
        return self._waiters

    def make_store(self, kind: Callable[..., Store] = Store) -> Store:
        """
        A store with connections of its own, for another thread or task.

        Raises:
            UsageError: The URL is that of an HTTP service.
        """
        self._need_server()
        store = new_store(self.settings, self._server, self._now, kind)
        if self._record is not None:
            store.agree, store.generation = self._record.guard.agree, self._record.generation
        return store

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """
        The event loop in which it is connected, None if it is not.
        """
        return self._loop if self._store is not None else None

    # -- since when, and for how long ---------------------------------------------------------------------

    async def _backend(self) -> Store | RemoteStore:
        loop = asyncio.get_running_loop()
        if self._store is not None and self._loop is loop:
            return self._store
        if self._connecting is None or self._loop is not loop:
            self._loop, self._connecting = loop, asyncio.Lock()
            self._store = self._record = self._waiters = None
            self._unrecorded = False
        async with self._connecting:
            if self._store is None:
                store = await self._connect()
                if isinstance(store, Store) and self.settings.record is not None:
                    self._record = await open_record(store, self.settings.record, self.settings)
                self._store = store
        return self._store

    async def _connect(self) -> Store | RemoteStore:
        if self.settings.remote:
            return await open_remote(self.settings)
        if self.settings.url is None and self._server is None:
            self._server = await start_server(self.settings)
        store = self.make_store()
        try:
            await self._inspect(store)
        except BaseException as error:
            if unreachable(error) and self._may_wait:
                log.warning("%s; the record takes jobs meanwhile", error)
                store.link.before = partial(self._inspect_later, store, asyncio.Lock())
                return store
            await store.link.aclose()
            raise
        return store

    @property
    def _may_wait(self) -> bool:
        """
        Whether there is something to do without the server, which is somebody else's to start.
        """
        return self.settings.record is not None and self._server is None and not self.must_exist

    async def _inspect(self, store: Store) -> None:
        self.facts = await inspect(store.link)
        for warning in self.facts.warnings:
            log.warning("%s", warning)
        if self.must_exist:
            await require(store.link, self.settings.namespace)
        await store.create()

    async def _inspect_later(self, store: Store, first: asyncio.Lock) -> None:
        """
        Look at the server before it is used, by connections of their own: all others wait for that.
        """
        async with first:
            if store.link.before is None:
                return
            scout = self.make_store()
            try:
                await self._inspect(scout)
            finally:
                await scout.link.aclose()
            store.link.before = None

    async def _need_no_record(self, store: Store) -> None:
        """
        Refuse to move jobs behind the back of a record.
        """
        if self._unrecorded:
            return
        if await store.link.call("HGET", store.keys[0].fixed["meta"], "record"):
            raise ServerUnsuitable(store.needs_record())
        self._unrecorded = True

    def _need_server(self) -> None:
        if self.settings.remote:
            raise needs_server(self.settings.url or "")

    async def reconnect(self) -> None:
        """
        Connect anew and check the server again, for instance after it was emptied.
        """
        await self._disconnect()
        await self.queue()

    async def aclose(self) -> None:
        """
        Close connections; the embedded server ends when its last user has gone.
        """
        if self._waiters is not None:
            await self._waiters.aclose()
            self._waiters = None
        await self._disconnect()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
            self._server = None

    async def _disconnect(self) -> None:
        if self._record is not None:
            await self._record.aclose()
            self._record = None
        if self._store is not None:
            await self._store.link.aclose()
            self._store = None
