"""
Notices of PostgreSQL: other processes have committed rows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from duly.forks import importing
from duly.pauses import Pauses
from duly.record.database import first_line
from duly.record.dialects import BACKEND, CHANNEL, CONNECT_S, is_pooled

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.record.database import Database

log = logging.getLogger("duly.relay")


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
