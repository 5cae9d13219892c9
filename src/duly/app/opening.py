"""
Opening what an app speaks to: a server of its own, a store, a service over HTTP, a record.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from typing import TYPE_CHECKING

from duly.connection import Link
from duly.defaults import MAX_CRASHES
from duly.errors import StoreUnavailable, UsageError
from duly.extras import needed
from duly.forks import importing
from duly.store import Keeping, Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.embedded.server import EmbeddedServer
    from duly.record.assembly import WholeRecord
    from duly.remote.store import RemoteStore
    from duly.settings import Settings

log = logging.getLogger("duly")


def start_server(settings: Settings) -> EmbeddedServer:
    """
    Start an embedded server, or join the one that runs; blocks until it answers.

    Raises:
        StoreUnavailable: It does not start.
    """
    with importing():
        from duly.embedded.server import EmbeddedServer  # noqa: PLC0415  # only who has no server needs one

    server = EmbeddedServer(settings.data, settings.durability)
    server.start()
    return server


def new_store(
    settings: Settings,
    server: EmbeddedServer | None,
    now: Callable[[], int] | None,
    kind: Callable[..., Store] = Store,
) -> Store:
    """
    A store with connections of its own, on the embedded *server* if there is one; connects on first use.
    """
    _import_idna()
    link = Link(
        server.url if server is not None else settings.url or "",
        ensure=None if server is None else _ensure(server),
        patience_s=settings.socket_timeout_ms / 1000,
    )
    return kind(
        link,
        namespace=settings.namespace,
        shards=settings.shards,
        lease_ms=settings.lease_ms,
        max_crashes=MAX_CRASHES,
        max_events=(settings.events_rows, settings.events_bytes),
        keeping=Keeping(
            done_ms=settings.keep_succeeded_ms,
            done_bytes=settings.keep_succeeded_bytes,
            dead_ms=settings.keep_dead_ms,
            dead_bytes=settings.keep_dead_bytes,
        ),
        now=now,
    )


async def open_remote(settings: Settings) -> RemoteStore:
    """
    Connect to the HTTP service that the URL names.

    Raises:
        StoreUnavailable, ServerUnsuitable: It cannot be reached, or is no such service.
    """
    # Only who has no server needs a client of HTTP.
    with needed("a queue with an http(s):// URL"), importing():
        from duly.remote.link import RemoteLink  # noqa: PLC0415  # only for HTTP
        from duly.remote.store import RemoteStore  # noqa: PLC0415  # likewise

    _import_idna()
    patience_s = settings.socket_timeout_ms / 1000
    link = RemoteLink(
        settings.url or "", api_key=settings.api_key, patience_s=patience_s, timeout_s=patience_s
    )
    try:
        await link.look()
    except BaseException:
        await link.aclose()
        raise
    return RemoteStore(link)


async def open_record(store: Store, settings: Settings, *, is_twin: bool = False) -> WholeRecord:
    """
    Connect to the record of a store, which is closed if that fails; *is_twin* means for `Duly.sync`.

    Raises:
        UsageError: Packages are missing, or it is no database that can be a record.
        RecordUnavailable, LayoutMismatch: The database cannot be reached, or does not fit.
    """
    record: WholeRecord | None = None
    try:
        with needed("a record"):
            with importing():
                from duly.record.assembly import WholeRecord  # noqa: PLC0415  # packages that need not be there
                from duly.record.target import Target  # noqa: PLC0415  # likewise

            target = Target.of(settings)
            if is_twin:
                target.need_no_loop()
            record = WholeRecord(
                target,
                store,
                horizon_ms=settings.horizon_ms,
                keep_ms=settings.record_keep_ms,
                works_alone=settings.record_away == "work",
            )
            await record.open()
    except BaseException:
        if record is not None:
            await record.aclose()
        await store.link.aclose()
        raise
    return record


def _import_idna() -> None:
    # What the first look for the address of a host would import.
    with importing():
        codecs.lookup("idna")


def _ensure(server: EmbeddedServer) -> Callable[[], Awaitable[None]]:
    async def ensure() -> None:
        try:
            await asyncio.to_thread(server.ensure)
        except (StoreUnavailable, UsageError) as error:
            # The call that found no server goes on trying, and tells its caller in the end.
            log.warning("%s", error)

    return ensure
