"""
A record put together: rows, relay, guard and upkeep on one database and one store.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from duly.record.clock import Clock
from duly.record.database import Database
from duly.record.guard import Guard
from duly.record.keys import KeptKeys
from duly.record.mending import count_rows
from duly.record.net import Net
from duly.record.outcomes import Outcomes
from duly.record.reconcile import Reconciler
from duly.record.record import Record
from duly.record.relay import Relay
from duly.record.retention import Retention
from duly.record.upkeep import Upkeep
from duly.record.views import RecordViews

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.record.reconcile import Report
    from duly.store import Store


class WholeRecord(Record):
    """
    The record of an app: what was promised, and whatever keeps the queue and the promises together.
    """

    guard: Guard

    def __init__(self, url: str, store: Store, *, horizon_ms: int, keep_ms: int) -> None:
        """
        Prepare; connects to nothing yet.

        Raises:
            UsageError: The URL is none of a database that can be a record.
        """
        database, clock = Database(url), Clock(store, horizon_ms)
        guard = Guard(database, store, hint=self.hint)
        relay = Relay(
            database,
            store,
            horizon_ms=horizon_ms,
            generation=self.generation,
            clock=clock,
            agree=guard.agree,
        )
        super().__init__(database, store, relay=relay, clock=clock, guard=guard)
        self._relay = relay
        self.keys = KeptKeys(database, store.namespace)
        self.upkeep = Upkeep(
            relay,
            Net(database, store, generation=self.generation),
            guard,
            Retention(database, store.namespace, keep_ms=keep_ms, clock=clock),
        )

    def generation(self) -> int | None:
        """
        Which memory of the queue counts; None before it was compared.
        """
        return self.guard.known()

    def outcomes(self) -> Outcomes:
        """
        The way of a worker's outcomes into the rows.
        """
        return Outcomes(self.database, self.store.namespace, generation=self.generation)

    async def reconcile(self, *, apply: bool, tell: Callable[[Report], None] = lambda _: None) -> Report:
        """
        Compare all rows with all jobs of the queue; with *apply* mend what differs, at once.

        Raises:
            StoreUnavailable, RecordUnavailable: What was mended before stays mended; run it again.
        """
        reconciler = Reconciler(
            self.database, self.store, apply=apply, generation=self.guard.generation, tell=tell
        )
        report = await reconciler.run()
        while apply and await self._relay.look():
            pass
        return report

    async def size(self) -> int:
        """
        How many rows and jobs there are to compare.
        """
        rows = await self.database.read(partial(count_rows, namespace=self.store.namespace))
        for keys in self.store.keys:
            rows += await self.store.link.call("HLEN", keys.fixed["jobs"])
        return rows

    def views(self) -> RecordViews:
        """
        Questions to both sides of the horizon.
        """
        return RecordViews(self.store, self.database, self.clock)

    async def settle(self) -> None:
        """
        Wait until the rows say what the queue has been given, or cannot.
        """
        await self._relay.settle()

    async def bring(self) -> int:
        """
        Take to the queue what is there for the relay now, all of it; how many rows that were.

        Raises:
            DulyError: The queue or the database is away; the relay of another process follows up.
        """
        brought = 0
        while some := await self._relay.look():
            brought += some
        return brought

    async def aclose(self) -> None:
        """
        Note what the queue has been given, and close connections to the database.
        """
        await self.settle()
        await super().aclose()
