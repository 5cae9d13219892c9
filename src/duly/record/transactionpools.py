"""
Connections for the transactions of handlers, apart from those of the record itself.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from duly.errors import UsageError
from duly.forks import importing
from duly.record.database import RECYCLE_S
from duly.record.dialects import DRIVERS, arguments, tame
from duly.record.engines import view_of
from duly.record.pool import Turns
from duly.record.transaction import JobTransaction

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from duly.record.database import Database
    from duly.record.transactionsteps import RunEnding

KEPT = 5  #: connections that are kept open
MORE = 15  #: connections beyond these, closed when they are given back; other blocks wait
POOL_WAITS_S = 10


class TransactionPools:
    """
    The pools of one worker's transactions, made on first use.

    A handler may take its time inside a block: the record's own few connections must not wait for it.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self.namespace = namespace
        self.schema = database.target.schema  #: of the record's tables, where it is a setting
        self._database = database
        self._for_loop: AsyncEngine | None = None
        self._for_threads: Engine | None = None
        self._making = threading.Lock()
        # SQLite has one writer at a time: blocks of one process queue here, and hold no connection meanwhile.
        self._turns = Turns(1) if database.name == "sqlite" else None

    def transaction(self, ending: RunEnding) -> JobTransaction:
        """
        Prepare the transaction of a run.
        """
        return JobTransaction(self, ending)

    def for_loop(self) -> AsyncEngine:
        """
        Return the engine of async handlers.

        Raises:
            UsageError: The record's engine was handed in, and is a blocking one.
        """
        handed = self._database.handed
        if isinstance(handed, AsyncEngine):
            return AsyncEngine(view_of(handed.sync_engine))
        if handed is not None:
            raise UsageError(
                "the record's engine is a blocking one, which would hold up the event loop: use "
                "current_job().transaction() in a plain function, or hand in an async engine or a URL"
            )
        if self._database.name == "sqlite":
            return cast("AsyncEngine", self._database.engine)
        if self._for_loop is None:
            with importing():
                self._for_loop = create_async_engine(
                    self._database.url,
                    pool_size=KEPT,
                    max_overflow=MORE,
                    pool_timeout=POOL_WAITS_S,
                    pool_recycle=RECYCLE_S,
                    pool_use_lifo=True,
                    **arguments(self._database.url),
                )
            tame(self._for_loop.sync_engine)
        return self._for_loop

    def for_threads(self) -> Engine:
        """
        Return the engine of plain functions.

        Raises:
            UsageError: The record's engine was handed in, and needs an event loop.
        """
        handed = self._database.handed
        if isinstance(handed, AsyncEngine):
            raise UsageError(
                "the record's engine is an async one, which does nothing in a thread: use "
                "current_job().transaction() in an async handler, or hand in a sync engine or a URL"
            )
        if handed is not None:
            return view_of(handed)
        with self._making:
            if self._for_threads is None:
                self._for_threads = self._make_for_threads()
            return self._for_threads

    def _make_for_threads(self) -> Engine:
        url = self._database.url.set(drivername=f"{self._database.name}+{DRIVERS[self._database.name][True]}")
        with importing():
            if self._database.name == "sqlite":
                engine = create_engine(url, poolclass=NullPool, **arguments(url))
            else:
                engine = create_engine(
                    url,
                    pool_size=KEPT,
                    max_overflow=MORE,
                    pool_timeout=POOL_WAITS_S,
                    pool_recycle=RECYCLE_S,
                    pool_use_lifo=True,
                    **arguments(url),
                )
        tame(engine)
        return engine

    async def take_turn(self) -> None:
        """
        Wait until no other async handler of this process is in a block, where there may be only one.
        """
        if self._turns is not None:
            await self._turns.take()

    def give_turn(self) -> None:
        """
        Let the next one begin.
        """
        if self._turns is not None:
            self._turns.give()

    async def aclose(self) -> None:
        """
        Close connections.
        """
        if self._for_loop is not None:
            await self._for_loop.dispose()
        if self._for_threads is not None:
            self._for_threads.dispose()
