"""
A record put together: rows, relay, guard and upkeep on one database and one store.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from duly.errors import DulyError, JobExists, OutcomeUnknown, QueueFull, Unsupported
from duly.record.bringback import BringBack
from duly.record.clock import Clock
from duly.record.database import Database
from duly.record.guard import Guard
from duly.record.idempotency import Expiry, KeptEntries
from duly.record.keys import KeptKeys
from duly.record.leader import Leader
from duly.record.mending import count_rows
from duly.record.net import Net
from duly.record.outcomes import Outcomes
from duly.record.reconcile import Reconciler
from duly.record.record import Record
from duly.record.relay import Relay
from duly.record.retention import Retention
from duly.record.searchpath import within_schema
from duly.record.sessions import Home
from duly.record.startcheck import StartCheck
from duly.record.transactionpools import TransactionPools
from duly.record.upkeep import Upkeep
from duly.record.views import RecordViews
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import TypeVar

    from sqlalchemy import Connection

    from duly.job import Lease, Order, Placed
    from duly.record.reconcile import Report
    from duly.record.sessions import AnySession
    from duly.record.target import AnyTarget

    T = TypeVar("T")


class WholeRecord(Record):
    """
    The record of an app: what was promised, and whatever keeps the queue and the promises together.
    """

    guard: Guard

    def __init__(
        self, source: AnyTarget, store: Store, *, horizon_ms: int, keep_ms: int, works_alone: bool = True
    ) -> None:
        """
        Prepare; connects to nothing yet.

        Raises:
            UsageError: It is no database that can be a record.
        """
        database, clock = Database(source), Clock(store, horizon_ms)
        leader = Leader(database, store.namespace, gained=self.hint)
        guard = Guard(database, store, hint=self.hint, works_alone=works_alone, leads=leader.leads)
        relay = Relay(
            database,
            store,
            horizon_ms=horizon_ms,
            generation=self.generation,
            clock=clock,
            agree=guard.agree,
            leads=leader.leads,
        )
        super().__init__(database, store, relay=relay, clock=clock, guard=guard)
        self._relay = relay
        self._home = Home(database, store.namespace)
        self.transactions = TransactionPools(database, store.namespace)
        self.keys = KeptKeys(database, store.namespace)
        self._entries: dict[tuple[int, int], KeptEntries] = {}
        self._check = StartCheck(database, store, guard, relay, works_alone=works_alone)
        self.upkeep = Upkeep(
            leader,
            relay,
            {
                "guard": guard,
                "net": Net(database, store, generation=self.generation, leads=leader.leads),
                "bring-back": BringBack(
                    database, store, relay, clock, generation=self.generation, leads=leader.leads
                ),
                "retention": Retention(database, store.namespace, keep_ms=keep_ms, clock=clock),
                "expiry": Expiry(database, store.namespace, clock),
            },
        )

    if not TYPE_CHECKING:  # to a type checker every attribute would be there

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Store, name):
                msg = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg, name=name, obj=self)
            raise Unsupported(f"a record has no call {name}: it is one of the store's, `await app.store()`")

    async def open(self) -> None:
        """
        See `Record`; what the store hands out from here on is looked up in the rows where it may be a repeat.

        Raises:
            RecordUnavailable, LayoutMismatch: As there.
        """
        await super().open()
        self.store.startable = self.startable

    async def enqueue(self, order: Order, *, session: AnySession | None = None) -> Placed:
        """
        See `Record`; a request that failed takes no room of those that may be sent again.

        Raises:
            JobExists, QueueFull, RecordUnavailable, OutcomeUnknown: As there.
        """
        try:
            return await super().enqueue(order, session=session)
        except (JobExists, QueueFull, OutcomeUnknown):
            raise  # its entry is written, or may be
        except DulyError:
            if order.once is not None:
                for entries in self._entries.values():
                    entries.give_up(order.once.entry)
            raise

    async def agreed_if_there(self) -> None:
        """
        See `Record`; what is promised next counts from the server's time as it is, also after a pause.

        Raises:
            ServerUnsuitable, RecordUnavailable: As there.
        """
        await self.clock.look()
        await super().agreed_if_there()

    async def _within(self, session: AnySession, work: Callable[[Connection], T]) -> T:
        await self._home.look()

        def at_home(connection: Connection) -> T:
            self._home.check(connection)
            return work(connection)

        schema = self.database.target.schema
        if schema is None:
            return await super()._within(session, at_home)
        return await super()._within(session, lambda connection: within_schema(connection, schema, at_home))

    def generation(self) -> int | None:
        """
        Which memory of the queue counts; None before it was compared.
        """
        return self.guard.known()

    async def agree(self) -> None:
        """
        Have the guard compare the queue with the rows, on the event loop of the record; from any loop.

        Raises:
            ServerUnsuitable, StoreUnavailable, RecordUnavailable: As the guard does.
        """
        await self._at_home(self.guard.agree())

    async def startable(self, leases: Sequence[Lease]) -> list[Lease]:
        """
        Choose the leases whose jobs may run, as their rows say; from any loop.

        Raises:
            RecordUnavailable: See `StartCheck`.
        """
        return await self._at_home(self._check.startable(leases))

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await call
        # A worker's heartbeat has a loop of its own, and the connections of the record are not there.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def entries(self, *, keep_ms: int, most: int) -> KeptEntries:
        """
        What is kept of requests that may be sent again.
        """
        found = self._entries.get((keep_ms, most))
        if found is None:
            made = KeptEntries(self.database, self.store, self.clock, keep_ms=keep_ms, most=most)
            found = self._entries[keep_ms, most] = made
        return found

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
        await self.upkeep.aclose()
        await self._check.aclose()
        await self.guard.aclose()
        await self.transactions.aclose()
        await super().aclose()
