"""
Notices of PostgreSQL: other processes have committed rows, and are told of those of this one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.forks import importing
from duly.loops import start_beside
from duly.pauses import Pauses
from duly.record.database import first_line
from duly.record.dialects import BACKEND, CHANNEL, CONNECT_S, is_pooled, notify

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.record.database import Database

log = logging.getLogger("duly.relay")

COALESCE_S = 0.005  #: how long a notice waits for other commits
SETTLE_S = 1.0  #: how long the end of a process waits for one: others look by themselves as soon


class Notices:
    """
    Listens on a connection of its own.  Only hints: who misses one looks a little later.
    """

    def __init__(self, database: Database, namespace: str, heard: Callable[[], None]) -> None:
        self._url = database.listen_url or ""
        self._namespace = namespace
        self._heard = heard

    async def listen(self) -> None:
        """
        Call back whenever rows of the namespace were committed, for ever.

        Returns at once behind a pooler, which tells its clients of nothing: the relay's own look finds rows.
        """
        with importing():
            import psycopg  # noqa: PLC0415  # only where the record is kept by PostgreSQL

        pauses = Pauses(0.5, 30.0)
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_S, application_name="duly"
                ) as connection:
                    [pid] = await (await connection.execute(BACKEND)).fetchone() or (0,)
                    if is_pooled(connection, pid):
                        log.info("the record is behind a pooler: looking for rows instead of listening")
                        return
                    await connection.execute(f"LISTEN {CHANNEL}")
                    pauses.reset()
                    # What was committed before it listened.
                    self._heard()
                    async for notice in connection.notifies():
                        if notice.payload == self._namespace:
                            self._heard()
            except (psycopg.Error, OSError) as error:
                log.info("not listening to the record for a while: %s", first_line(error))
            await asyncio.sleep(pauses.take())


class Notifier:
    """
    Tells the relays of other processes that rows were committed, where the database can.

    After the commit and from a connection of our own: PostgreSQL commits transactions that notify one at a
    time, on the whole server.  Many commits make one notice.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._can = database.name == "postgresql"
        self._due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sender: asyncio.Task[None] | None = None

    def open(self) -> None:
        """
        Learn which event loop sends: the one that runs.
        """
        self._loop = asyncio.get_running_loop()

    def tell(self) -> None:
        """
        Say that rows were committed; from any thread.
        """
        if self._can and not self._due and self._loop is not None and not self._loop.is_closed():
            self._due = True
            self._loop.call_soon_threadsafe(self._start)

    async def settle(self) -> None:
        """
        Send at once what has not been sent.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                if self._sender is not None:
                    await asyncio.wait([self._sender])
                if self._due:
                    await self._send()

    def _start(self) -> None:
        if self._due and self._sender is None:
            self._sender = start_beside(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._due:
                await asyncio.sleep(COALESCE_S)
                await self._send()
        finally:
            self._sender = None

    async def _send(self) -> None:
        # What is committed from here on makes another one.
        self._due = False
        try:
            await self._database.write(partial(notify, namespace=self._namespace))
        except DulyError as error:
            log.info("other processes are not told of a commit, and look by themselves: %s", error)
