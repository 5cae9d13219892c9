"""
What a namespace is made of, asked from a thread without an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.errors import LayoutMismatch
from duly.keys import LAYOUT, ShardKeys
from duly.namespace import create, inspect, require
from duly.settings import Settings
from duly.spark.sending import Loop

if TYPE_CHECKING:
    from duly.connection import Link
    from duly.spark.options import QueueOptions


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
