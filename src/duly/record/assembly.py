"""
A record put together: rows, relay, guard and upkeep on one database and one store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.record.clock import Clock
from duly.record.database import Database
from duly.record.guard import Guard
from duly.record.keys import KeptKeys
from duly.record.net import Net
from duly.record.outcomes import Outcomes
from duly.record.record import Record
from duly.record.relay import Relay
from duly.record.retention import Retention
from duly.record.upkeep import Upkeep
from duly.record.views import RecordViews

if TYPE_CHECKING:
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
        relay = Relay(database, store, horizon_ms=horizon_ms, generation=self.generation, clock=clock)
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
        return self.guard.generation or None

    def outcomes(self) -> Outcomes:
        """
        The way of a worker's outcomes into the rows.
        """
        return Outcomes(self.database, self.store.namespace, generation=self.generation)

    def views(self) -> RecordViews:
        """
        Questions to both sides of the horizon.
        """
        return RecordViews(self.store, self.database, self.clock)

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
        await self._relay.settle()
        await super().aclose()
