"""
The leader of a namespace: one process that does what only one should do, found and replaced by way of a row.

No clocks are compared: a follower takes over when it has seen no beat for a while by its own steady clock.
No lock is held, as poolers break those of sessions.  Two may lead for a moment: what they do is safe twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import select, update

from duly.errors import DulyError
from duly.record.dialects import insert_absent
from duly.record.tables import leaders

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from duly.record.database import Database

log = logging.getLogger("duly.record")

EVERY_S = 0.25
SILENT_S = 0.8  #: how long a leader may miss its beats
STANDS_BACK_S = 3.0  #: how long one that has resigned does not try again


class Term(NamedTuple):
    """
    What the row says.
    """

    holder: str
    term: int
    beat: int


class Leader:
    """
    Whether this process leads, kept up by a beat.
    """

    every_s = EVERY_S

    def __init__(
        self, database: Database, namespace: str, *, gained: Callable[[], None] = lambda: None
    ) -> None:
        """
        Prepare: *gained* is called when this process begins to lead.
        """
        self._database = database
        self._namespace = namespace
        self._gained = gained
        self._name = secrets.token_hex(8)
        self._leads_until_s = 0.0
        self._seen: Term | None = None
        self._seen_s = 0.0  #: when the row was another one for the last time
        self._stands_back_until_s = 0.0

    def leads(self) -> bool:
        """
        Return whether this process leads now.
        """
        return time.monotonic() < self._leads_until_s

    async def run_once(self) -> int:
        """
        Say that this process still leads, or see whether another one does.

        Raises:
            RecordUnavailable: The database cannot be reached.
        """
        asked_s = time.monotonic()
        if asked_s < self._stands_back_until_s:
            return 0
        is_over = self._seen is not None and asked_s - self._seen_s >= SILENT_S
        found = await self._database.write(
            partial(beat, namespace=self._namespace, name=self._name, silent=self._seen if is_over else None)
        )
        if found.holder == self._name:
            led = self.leads()
            # From before it was asked: a follower begins to count no earlier than that.
            self._leads_until_s = asked_s + SILENT_S
            if not led:
                log.debug("this process leads for namespace %r now", self._namespace)
                self._gained()
        else:
            self._leads_until_s = 0.0
        if found != self._seen:
            self._seen, self._seen_s = found, time.monotonic()
        return 0

    async def resign(self) -> None:
        """
        Leave it to another process: this one cannot do it.
        """
        self._stands_back_until_s = time.monotonic() + STANDS_BACK_S
        await self.aclose()

    async def aclose(self) -> None:
        """
        Let another process take over at once.
        """
        if not self.leads():
            return
        self._leads_until_s = 0.0
        try:
            async with asyncio.timeout(SILENT_S):
                await self._database.write(partial(leave, namespace=self._namespace, name=self._name))
        except (DulyError, TimeoutError) as error:
            log.debug("others have to find out that this process leads no more: %s", error)


def beat(connection: Connection, namespace: str, name: str, silent: Term | None) -> Term:
    """
    Count on if *name* leads, or take over from a leader that is *silent* or has left; the row as it is then.
    """
    columns = leaders.c
    mine = columns.namespace == namespace
    found = connection.execute(select(columns.holder, columns.term, columns.beat).where(mine)).first()
    if found is None:
        row = {"namespace": namespace, "holder": name, "term": 1, "beat": 0}
        insert_absent(connection, leaders, [row])
    else:
        now = Term(*found)
        if now.holder == name:
            values: dict[str, Any] = {"beat": now.beat + 1}
        elif now.holder == "" or now == silent:
            values = {"holder": name, "term": now.term + 1, "beat": 0}
        else:
            return now
        connection.execute(
            update(leaders)
            .where(mine, columns.holder == now.holder, columns.term == now.term, columns.beat == now.beat)
            .values(**values)
        )
    return Term(*connection.execute(select(columns.holder, columns.term, columns.beat).where(mine)).one())


def leave(connection: Connection, namespace: str, name: str) -> None:
    """
    Lead no more.
    """
    connection.execute(
        update(leaders).where(leaders.c.namespace == namespace, leaders.c.holder == name).values(holder="")
    )
