"""
Notices of PostgreSQL: other processes have committed rows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from duly.record.database import first_line
from duly.record.dialects import CHANNEL, CONNECT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.record.database import Database

log = logging.getLogger("duly.relay")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class Notices:
    """
    Listens on a connection of its own.  Only hints: who misses one looks a little later.
    """

    def __init__(self, database: Database, namespace: str, heard: Callable[[], None]) -> None:
        self._url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._namespace = namespace
        self._heard = heard

    async def listen(self) -> None:
        """
        Call back whenever rows of the namespace were committed, for ever.
        """
        import psycopg  # noqa: PLC0415  # only where the record is kept by PostgreSQL

        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_S, application_name="duly"
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    pause_s = FIRST_PAUSE_S
                    # What was committed before it listened.
                    self._heard()
                    async for notice in connection.notifies():
                        if notice.payload == self._namespace:
                            self._heard()
            except (psycopg.Error, OSError) as error:
                log.info("not listening to the record for a while: %s", first_line(error))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
