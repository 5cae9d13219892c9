"""
Serve an ASGI application: where it may listen, and how it ends.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from duly.addresses import is_loopback
from duly.errors import UsageError
from duly.http.protocol import Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.applications import Starlette

    from duly.apikeys import KeyRing
    from duly.app import Duly
    from duly.http.service import Service


log = logging.getLogger("duly.serve")

TICKS = 5  #: of uvicorn's, which are tenths of a second, between two looks at all connections
FILES = 100  #: that a service has open beside its connections


async def check_place(host: str, keys: KeyRing) -> None:
    """
    Refuse to serve others without keys.

    Raises:
        UsageError: Other machines reach *host*, and there is no key.
    """
    if not is_loopback(host) and not await keys.any():
        msg = (
            f"{host} can be reached from other machines, and there is no API key: all could do everything. "
            "Make one with `duly keys create NAME --scope admin`, or set DULY_API_KEYS, or serve on 127.0.0.1"
        )
        raise UsageError(msg)


def listen(host: str, port: int) -> socket.socket:
    """
    A socket to serve on; port 0 takes a free one.

    Raises:
        UsageError: It cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        said = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {host} port {port}: {said}; choose another with --port"
        ) from error


def allow_files(connections: int) -> None:
    """
    Raise the limit of open files to what so many connections need, as far as the system allows.
    """
    needed = connections + connections // 10 + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning(
            "%d connections need %d open files, and the system allows %d: raise `ulimit -n`, or lower "
            "--max-connections",
            connections,
            needed,
            allowed,
        )


@asynccontextmanager
async def delivering(app: Duly, server: uvicorn.Server) -> AsyncIterator[None]:
    """
    Deliver callbacks while the block runs; who cannot do that any more should not serve either.
    """
    if not app.settings.callback_secrets:
        log.info("callbacks are not delivered here: there is no DULY_CALLBACK_SECRETS to sign them with")
        yield
        return
    stop = asyncio.Event()
    task = asyncio.create_task(app.deliver(stop=stop))

    def end(_: object) -> None:
        server.should_exit = True

    task.add_done_callback(end)
    try:
        yield
    finally:
        stop.set()
        with suppress(asyncio.CancelledError):
            await task


class Server(uvicorn.Server):
    """
    A server that ends with its service, and returns once it has drained.

    uvicorn raises the signal that ended it anew, which would end the process before its app is closed.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def on_tick(self, counter: int) -> bool:
        """
        Look whether it is time to end, and for clients that take too long.
        """
        if counter % TICKS == 0:
            self._check()
        return await super().on_tick(counter) or self._service.workplace.failure is not None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """
        Let SIGINT and SIGTERM end it, a second SIGINT at once.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """
        Tell the service that it drains: what waits for long, or streams for ever, ends by itself then.
        """
        self._service.drain()
        checking = asyncio.create_task(self._check_often())
        try:
            await super().shutdown(sockets)
        finally:
            checking.cancel()

    async def _check_often(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self._check(ending=True)

    def _check(self, *, ending: bool = False) -> None:
        now_s = time.monotonic()
        for connection in list(self.server_state.connections):
            cast("Protocol", connection).check(now_s, ending=ending)


def server_of(application: Starlette, drain_s: float) -> Server:
    """
    A server that ends requests under way before it ends itself, for at most *drain_s*.
    """
    service = application.state.service
    protocol: Any = partial(Protocol, limits=service.settings)
    return Server(
        uvicorn.Config(
            application,
            http=protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=max(1, round(drain_s)),
        ),
        service,
    )
