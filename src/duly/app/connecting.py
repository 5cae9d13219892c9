"""
The way to and from the store: what is connected, since when, and for how long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from duly.apikeys import KeyRing
from duly.app.connections import Connections
from duly.app.declaring import Declaring
from duly.app.opening import new_store, open_record, open_remote, start_server
from duly.app.testqueue import private
from duly.codec import Envelope
from duly.connection import place_of, unreachable
from duly.defaults import attempts_of
from duly.errors import ServerUnsuitable, Unsupported, UsageError
from duly.extras import need
from duly.loops import loop_if_any, patched_by, running_loop
from duly.namespace import inspect, require
from duly.remote.store import needs_server
from duly.remote.views import RemoteViews
from duly.remote.waiting import RemoteWaiters
from duly.store import Store
from duly.testrun import TEST_RUN
from duly.views import Views
from duly.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from duly.embedded.server import EmbeddedServer
    from duly.handlers import Handler
    from duly.job import Job
    from duly.namespace import ServerFacts
    from duly.record.assembly import WholeRecord
    from duly.remote.link import RemoteLink
    from duly.remote.store import RemoteStore
    from duly.settings import Settings

log = logging.getLogger("duly")

_apps: weakref.WeakSet[Connecting] = weakref.WeakSet()
#: Of the parents of a forked child.  Never freed there: that would close what the parent still uses.
_inherited: list[object] = []


class Connecting(Declaring):
    """
    An app's connections: made on first use, one set for each event loop.

    Any number of loops may use the app at once, each in its own thread.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.facts: ServerFacts | None = None
        self.must_exist = False  #: refuse a namespace that is not there, instead of making it
        self._now: Callable[[], int] | None = None
        self._own: Settings | None = None  #: those it is configured with, while a test run gives it others
        self._in_test_bed = False
        self._is_twin = False  #: it is used through `Duly.sync`, on a loop of that
        self._told: set[str] = set()  #: warnings about the server, each of which is logged once
        self._begin_unconnected()

    def _begin_unconnected(self) -> None:
        self._server: EmbeddedServer | None = None  #: shared by all loops
        self._starting = threading.Lock()  #: held while the server is started
        self._by_loop: dict[asyncio.AbstractEventLoop, Connections] = {}
        self._changing = threading.Lock()  #: guards the dict; a loop looks itself up without it
        _apps.add(self)

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
            Unsupported: The URL is that of an HTTP service.
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
        here = await self._here()
        # Taken now: another task may close them meanwhile.
        store, record = here.store, here.record
        if record is not None:
            await record.agreed_if_there()
            return record
        if not here.unrecorded and isinstance(store, Store):
            await self._need_no_record(store)
            here.unrecorded = True
        return cast("Store | RemoteStore", store)

    async def record(self) -> WholeRecord:
        """
        The connected record, compared with the queue.

        Raises:
            Unsupported: There is none.
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
            Unsupported: There is none.
            StoreUnavailable, RecordUnavailable: Server or database cannot be reached.
            ServerUnsuitable, LayoutMismatch: One of them does not fit.
        """
        here = await self._here()
        if self.settings.remote:
            raise Unsupported(
                f"{self.settings.url} is a queue's HTTP service, which has no part in a transaction: "
                "leave out session, or use the queue's own server and its record"
            )
        if here.record is None:
            raise Unsupported("there is no record: Duly(…, record='postgresql://…'), or DULY_RECORD")
        return here.record

    async def views(self) -> Views:
        """
        Read-only questions to the store.
        """
        here = await self._here()
        if here.record is not None:
            views: Views = here.record.views()
        else:
            is_remote = not isinstance(here.store, Store)
            views = RemoteViews(_remote(here).link) if is_remote else Views(cast("Store", here.store))
        views.resolve = self._resolve
        return views

    def _resolve(self, job: Job) -> Job:
        """
        Add to a job, just made, how many runs it has at most: by itself, else by its handler or the settings.
        """
        default = self._terms(job.topic).max_attempts
        attempts = attempts_of(job.envelope or Envelope(), default)
        object.__setattr__(job, "max_attempts", attempts)  # nobody else has it yet, and a copy takes longer
        return job

    def _terms(self, topic: str) -> Handler[..., Any] | Settings:
        return self.handlers.get(topic) or self.settings

    async def key_ring(self) -> KeyRing:
        """
        The API keys of the namespace.

        Raises:
            UsageError: ``DULY_API_KEYS`` cannot be read.
        """
        store = await self.store()
        record = (await self._here()).record
        # A queue on a server of its own has no directory: what lies in the default one is another's.
        marker = self.settings.data / f"keys-required-{store.namespace}" if self._server else None
        return KeyRing(store, keeper=None if record is None else record.keys, marker=marker)

    async def waiters(self) -> Waiters | RemoteWaiters:
        """
        Who waits for jobs to end.
        """
        here = await self._here()
        if here.waiters is None:
            elsewhere = None if here.record is None else here.record.views().get
            if isinstance(here.store, Store):
                here.waiters = Waiters(here.store, elsewhere)
            else:
                here.waiters = RemoteWaiters(_remote(here).link)
        return here.waiters

    def make_store(self, kind: Callable[..., Store] = Store) -> Store:
        """
        A store with connections of its own, for another thread or task.

        Raises:
            Unsupported: The URL is that of an HTTP service.
        """
        return self._store_beside(self._record_here, kind)

    def _store_beside(self, record: WholeRecord | None, kind: Callable[..., Store] = Store) -> Store:
        self._follow_test_run()
        self._need_server()
        store = new_store(self.settings, self._server, self._now, kind)
        if record is not None:
            store.agree, store.generation = record.agree, record.generation
            store.startable = record.startable
        return store

    @property
    def _record_here(self) -> WholeRecord | None:
        """
        The record that is connected on the loop that runs here.
        """
        loop = loop_if_any()
        here = None if loop is None else self._by_loop.get(loop)
        return None if here is None else here.record

    @property
    def place(self) -> str:
        """
        Where its jobs wait, for messages: a folder, or an address without a password.
        """
        settings = self.settings
        if settings.url is None:
            found = f"the embedded server in {settings.data.absolute()}"
        elif settings.remote:
            found = f"the service at {settings.url}"
        else:
            found = f"the server at {place_of(settings.url)}"
        return found if settings.namespace == "duly" else f"{found}, namespace {settings.namespace}"

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """
        An event loop in which it is connected, the one that runs here before any other; None if it is not.
        """
        loops = self._connected_loops()
        here = loop_if_any()
        return here if here in loops else next(iter(loops), None)

    def _connected_loops(self) -> list[asyncio.AbstractEventLoop]:
        with self._changing:
            return [
                loop
                for loop, each in self._by_loop.items()
                if each.store is not None and not loop.is_closed()
            ]

    async def _remote_link(self) -> RemoteLink:
        return _remote(await self._here()).link

    @property
    def configured(self) -> Settings:
        """
        The settings it was made with, also while a test run gives it others.
        """
        return self._own or self.settings

    # -- since when, and for how long ---------------------------------------------------------------------

    def _ready(self) -> Store | RemoteStore | None:
        """
        The queue, if it is connected on this loop and known to have no record; asked of every job sent.
        """
        here = self._by_loop.get(running_loop())
        return None if here is None or not here.unrecorded or TEST_RUN.watches else here.store

    async def _here(self) -> Connections:
        """
        What is connected on the loop that runs here; connects if nothing is.
        """
        loop = running_loop()
        if TEST_RUN.watches:
            for close in self._follow_test_run():
                await close()
        here = self._by_loop.get(loop)
        if here is not None and here.store is not None:
            return here
        if here is None:
            here = self._add_loop(loop)
        async with here.opening:
            if here.store is None:
                store, record = await self._connect(), None
                if isinstance(store, Store) and self.settings.record is not None:
                    record = await open_record(store, self.settings, is_twin=self._is_twin)
                await here.hold(store, record)
        return here

    async def _backend(self) -> Store | RemoteStore:
        return cast("Store | RemoteStore", (await self._here()).store)

    def _add_loop(self, loop: asyncio.AbstractEventLoop) -> Connections:
        with self._changing:
            # Loops that were closed without the end that closes their connections: those went with them.
            for each in [each for each in self._by_loop if each.is_closed()]:
                del self._by_loop[each]
            here = self._by_loop[loop] = Connections(loop, self._forget)
        return here

    def _forget(self, ended: Connections) -> None:
        with self._changing:
            if self._by_loop.get(ended.loop) is ended:
                del self._by_loop[ended.loop]

    def _follow_test_run(self) -> list[Callable[[], Awaitable[None]]]:
        """
        Go where the test run of this process allows, if there is one; the answer closes what was connected.

        Raises:
            UsageError: It allows nothing.
        """
        if not TEST_RUN.watches or self._in_test_bed:
            return []
        settings = TEST_RUN.settings_for(self.configured, private)
        if settings is self.settings or settings == self.settings:
            return []
        self._own = None if settings is self.configured else self.configured
        self.settings = settings
        # Forgotten first: nobody gets them while they are closed.  Those of other loops end with these.
        with self._changing:
            sets, self._by_loop = self._by_loop, {}
            server, self._server = self._server, None
        here = loop_if_any()
        left: list[Callable[[], Awaitable[None]]] = []
        if here in sets:
            left.append(sets[here].aclose)
        if server is not None:
            left.append(partial(asyncio.to_thread, server.close))
        return left

    async def _connect(self) -> Store | RemoteStore:
        if self.settings.remote:
            if "eventlet" in sys.modules and not hasattr(socket.socket, "sendmsg"):
                raise UsageError(
                    "the HTTP service cannot be reached where eventlet has patched sockets: asyncio needs "
                    "what they lack; give Duly the URL of a server, or use threads or gevent"
                )
            return await open_remote(self.settings)
        if self.settings.record is not None:
            need("a record", "sqlalchemy")
        if self.settings.url is None and self._server is None:
            if patched_by() == "eventlet":
                # It would wait for ever for what the server says.
                raise UsageError(
                    "the embedded server cannot be started where eventlet has patched threads: give Duly the "
                    "URL of a server, or use threads or gevent"
                )
            await asyncio.to_thread(self._start_server)
        store = self._store_beside(None)
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

    def _start_server(self) -> None:
        # One loop starts it, the others wait for that.
        with self._starting:
            if self._server is None:
                self._server = start_server(self.settings)

    @property
    def _may_wait(self) -> bool:
        """
        Whether there is something to do without the server, which is somebody else's to start.
        """
        return self.settings.record is not None and self._server is None and not self.must_exist

    async def _inspect(self, store: Store) -> None:
        self.facts = await inspect(store.link)
        for warning in self.facts.warnings:
            if warning not in self._told:
                self._told.add(warning)
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
            scout = self._store_beside(None)
            try:
                await self._inspect(scout)
            finally:
                await scout.link.aclose()
            store.link.before = None

    async def _need_no_record(self, store: Store) -> None:
        """
        Refuse to move jobs behind the back of a record.
        """
        if await store.link.call("HGET", store.keys[0].fixed["meta"], "record"):
            raise ServerUnsuitable(store.needs_record())

    def _need_server(self) -> None:
        if self.settings.remote:
            raise needs_server(self.settings.url or "")

    async def reconnect(self) -> None:
        """
        Connect anew and check the server again, for instance after it was emptied.

        On the loop that runs here; others keep their connections.
        """
        here = self._by_loop.get(running_loop())
        if here is not None:
            if here.store is not None and not isinstance(here.store, Store):
                # Calls under way go on: there is nothing here that a service could have forgotten.
                await here.store.link.look()
                return
            await here.aclose()
        await self.queue()

    async def aclose(self) -> None:
        """
        Close the connections of this event loop; those of another are closed there, or with it.

        The embedded server ends when its last user has gone.
        """
        loop = running_loop()
        here = self._by_loop.get(loop)
        if here is not None:
            await here.aclose()
        with self._changing:
            others = any(
                each.store is not None or each.opening.locked()
                for other, each in self._by_loop.items()
                if other is not loop and not other.is_closed()
            )
            server, self._server = (self._server, None) if not others else (None, self._server)
        if server is not None:
            await asyncio.to_thread(server.close)

    def _leave_to_parent(self) -> None:
        """
        Begin anew in a forked child: what is connected is the parent's, and its locks may be held for ever.
        """
        _inherited.extend(each.leave() for each in self._by_loop.values())
        self._begin_unconnected()


def _remote(here: Connections) -> RemoteStore:
    return cast("RemoteStore", here.store)


def _after_fork() -> None:
    for app in list(_apps):
        app._leave_to_parent()  # noqa: SLF001  # the other half of the class


os.register_at_fork(after_in_child=_after_fork)
