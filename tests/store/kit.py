"""
Short words for store tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.connection import Link, Tries
from duly.job import JobKey, Order
from duly.store import Want
from tests.shards import claim_all, recover_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from duly.job import Lease, Placed
    from duly.store import Store
    from duly.testing import TestClock


def order(id_: str, topic: str = "mail", payload: bytes = b"{}", **options: Any) -> Order:
    return Order(JobKey(topic, id_), payload, **options)


async def enqueue(store: Store, id_: str, topic: str = "mail", **options: Any) -> Placed:
    return await store.enqueue(order(id_, topic, **options))


async def claim(
    store: Store, *topics: str, worker: str = "w1", limit: int = 10, free: int | None = None, **options: Any
) -> list[Lease]:
    """
    Claim from all shards, the first first.
    """
    wants = [Want(topic, limit if free is None else free, 60_000) for topic in topics or ("mail",)]
    return await claim_all(store, wants, worker=worker, limit=limit, **options)


def ids(leases: Sequence[Lease]) -> list[str]:
    return [lease.key.id for lease in leases]


def index_of(store: Store, name: str, topic: str = "mail") -> str:
    """
    The key of an index in the first shard; that of scheduled jobs is one of many.
    """
    keys = store.keys[0]
    return keys.due(topic) if name == "due" else keys.fixed[name]


async def crash(store: Store, clock: TestClock, *topics: str) -> list[Lease]:
    """
    Claim what is there and let the leases run out.
    """
    leases = await claim(store, *topics)
    clock.advance(s=16)
    await recover_all(store)
    return leases


class LossyLink(Link):
    """
    A link that loses replies when told to, and so sends calls again.
    """

    lose = False  #: lose the first reply to each script call
    between: Callable[[], Awaitable[None] | None] | None = None  #: called between the two
    last: tuple[str, Sequence[str], Sequence[Any]]  #: the last script call
    lost: Any  #: the last reply that was lost
    resend: tuple[str, Sequence[str], Sequence[Any]] | None = None  #: sent once more instead of the next call

    async def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        again: Sequence[Any] | None = None,
        tries: Tries | None = None,
    ) -> Any:
        if self.resend:
            (sent, keys, again), self.resend = self.resend, None
            assert sent == name
        else:
            self.last = (name, keys, again or args)
            self.lost = await super().run(name, keys, args, again=again, tries=tries)
            if not self.lose:
                return self.lost
        if tries is not None:
            tries.maybe_ran = True
        if self.between and (done := self.between()) is not None:
            await done
        return await super().run(name, keys, again or args)


def key(id_: str, topic: str = "mail") -> JobKey:
    return JobKey(topic, id_)
