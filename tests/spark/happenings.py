"""
Jobs that meet every fate, on a real server, and the events that tell of it.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from duly.connection import Link
from duly.feed import Feed
from duly.job import JobKey, Order
from duly.namespace import create
from duly.store import Store, Want

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.events import Event

_numbers = itertools.count(1)


class Happenings:
    """
    A namespace of its own, and things that happen in it.
    """

    def __init__(self, url: str, namespace: str, *, shards: int = 1, max_event_rows: int = 1_000_000) -> None:
        self.url, self.namespace, self.shards = url, namespace, shards
        self.max_event_rows = max_event_rows
        self.kept: list[Event] = []  #: what was emitted so far, trimmed or not

    def live(self, jobs: int, *, start: int = 0) -> None:
        """
        Enqueue so many jobs; a third is to wait, the others succeed, fail, are retried or cancelled.
        """
        self._run(lambda store: self._live(store, range(start, start + jobs)))

    def events(self) -> list[Event]:
        """
        All events that are on the server now.
        """
        found: list[Event] = []

        async def read(store: Store) -> None:
            for shard in range(self.shards):
                found.extend(
                    event for _, events in await Feed(store).oldest(shard, 1_000_000) for event in events
                )

        self._run(read)
        return found

    def consumers(self) -> dict[str, int]:
        """
        Who reads events, and how far each came on the first shard.
        """
        found: dict[str, int] = {}

        async def read(store: Store) -> None:
            found.update(await Feed(store).consumers(0))

        self._run(read)
        return found

    def hold(self, consumer: str) -> None:
        """
        Register a consumer that reads nothing, so that nothing is trimmed.
        """

        async def register(store: Store) -> None:
            for shard in range(self.shards):
                await Feed(store).commit(consumer, shard, None)

        self._run(register)

    def _run(self, what: Callable[[Store], Awaitable[None]]) -> None:
        async def main() -> None:
            link = Link(self.url)
            try:
                await create(link, self.namespace, self.shards, max_event_rows=self.max_event_rows)
                await what(Store(link, namespace=self.namespace, shards=self.shards))
            finally:
                await link.aclose()

        asyncio.run(main())

    async def _live(self, store: Store, numbers: range) -> None:
        keys = [JobKey("mail" if number % 4 else "sms.de", f"j{number}") for number in numbers]
        orders = [Order(key, b"{}", delay_ms=3_600_000 if at % 3 == 0 else 0) for at, key in enumerate(keys)]
        await store.enqueue_many(orders)
        await store.cancel(keys[-2:], reason="not wanted")
        for shard in range(self.shards):
            wants = [Want("mail", 500, 10_000), Want("sms.de", 500, 10_000)]
            claimed = await store.claim(shard, wants, worker="w1", limit=500)
            for at, lease in enumerate(claimed.leases):
                if at % 10 == 7:
                    await store.retry(lease, 3_600_000, b"{}", f"Boom: #{at % 2}", lateness_ms=at)
                elif at % 10 == 9:
                    await store.bury(lease, b"{}", "Bad", lateness_ms=at)
                else:
                    await store.ack(lease, lateness_ms=at)


def identity(event: Event) -> tuple[int, str, int, int]:
    """
    What tells an event from all others.
    """
    return event.shard, event.epoch, event.counter, event.row
