"""
What a namespace is made of, asked from a thread without an event loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from duly.errors import LayoutMismatch, ServerUnsuitable
from duly.extras import needed
from duly.keys import LAYOUT, ShardKeys
from duly.namespace import create, inspect, require
from duly.settings import Settings
from duly.spark.sending import Loop
from duly.store import Store

if TYPE_CHECKING:
    from types import ModuleType

    from duly.connection import Link
    from duly.spark.options import QueueOptions, WriteOptions


def open_queue(options: QueueOptions, *, make: bool = False) -> int:
    """
    Check the server and the namespace, once, on the driver; return how many shards there are.

    Raises:
        DulyError: They cannot be used; the message says why.
    """
    loop = Loop(options.url)
    try:
        count: int = loop.call(_open(loop.link, options.namespace, make=make))
        return count
    finally:
        loop.close()


def open_target(options: WriteOptions) -> int:
    """
    Do the same for who writes, and look at the record as well; make the namespace if it is not there.

    Raises:
        ServerUnsuitable: The queue has a record, and none was named, or another one.
        DulyError: Something else cannot be used; the message says why.
    """
    count = open_queue(options, make=not options.plan)
    if options.record:
        recording().check_record(options, count)
        return count
    loop = Loop(options.url)
    try:
        store = Store(loop.link, namespace=options.namespace, shards=count)
        if loop.call(_recorded(store)):
            raise ServerUnsuitable(store.needs_record())
    finally:
        loop.close()
    return count


def recording() -> ModuleType:
    """
    The module that writes by way of a record.

    Raises:
        UsageError: Its packages are missing.
    """
    with needed("a record"):
        return importlib.import_module("duly.spark.recording")


async def _recorded(store: Store) -> bool:
    return bool(await store.link.call("HGET", store.keys[0].fixed["meta"], "record"))


async def _open(link: Link, namespace: str, *, make: bool) -> int:
    await inspect(link)
    if make and await link.call("HGET", ShardKeys(namespace, 0).fixed["meta"], "layout") is None:
        settings = Settings.load(namespace=namespace)
        await create(
            link,
            namespace,
            settings.shards,
            max_event_rows=settings.events_rows,
            max_event_bytes=settings.events_bytes,
        )
    await require(link, namespace)
    layout, shards = await link.call("HMGET", ShardKeys(namespace, 0).fixed["meta"], "layout", "shards")
    if layout.decode() != LAYOUT:
        msg = f"namespace {namespace!r} has layout version {layout.decode()}, this duly speaks {LAYOUT}"
        raise LayoutMismatch(msg)
    return int(shards)
