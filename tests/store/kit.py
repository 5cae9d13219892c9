"""
Short words for store tests.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from duly.connection import Link
from duly.job import JobKey, Order
from duly.store import Want

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import Lease, Placed
    from duly.store import Store

_claims = itertools.count(1)


def order(id_: str, topic: str = "mail", payload: bytes = b"{}", **options: Any) -> Order:
    return Order(JobKey(topic, id_), payload, **options)


async def enqueue(store: Store, id_: str, topic: str = "mail", **options: Any) -> Placed:
    return await store.enqueue(order(id_, topic, **options))


async def claim(
    store: Store, *topics: str, worker: str = "w1", limit: int = 10, free: int | None = None, **options: Any
) -> list[Lease]:
    wants = [Want(topic, limit if free is None else free, 60_000) for topic in topics or ("mail",)]
    options.setdefault("number", next(_claims))
    return (await store.claim(0, wants, worker=worker, limit=limit, **options)).leases


class RecordingLink(Link):
    """
    A link that can send its last script call once more, as after a lost reply.
    """

    async def run(
        self, name: str, keys: Sequence[str], args: Sequence[Any], *, again: Sequence[Any] | None = None
    ) -> Any:
        self.last = (name, keys, again or args)
        self.answer = await super().run(name, keys, args, again=again)
        return self.answer

    async def replay(self) -> Any:
        name, keys, args = self.last
        return await super().run(name, keys, args)


def key(id_: str, topic: str = "mail") -> JobKey:
    return JobKey(topic, id_)
