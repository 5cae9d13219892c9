"""
The check before a run starts that may be a repeat: a job whose row has ended does not run again.

Most runs are none: what was promised in this generation, and runs for the first time, is not looked up.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from duly.errors import JobNotFound, LeaseLost, RecordUnavailable
from duly.job import JobState
from duly.loops import start_beside
from duly.record.stored import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import JobKey, Lease
    from duly.record.database import Database
    from duly.record.guard import Guard
    from duly.record.relay import Relay
    from duly.record.rows import JobRow
    from duly.store import Store

log = logging.getLogger("duly.record")

ASKED_FOR_S = 2.0  #: how long a silent database is waited for


class StartCheck:
    """
    Looks at the rows of jobs that were claimed.
    """

    def __init__(
        self, database: Database, store: Store, guard: Guard, relay: Relay, *, works_alone: bool = True
    ) -> None:
        self._database = database
        self._store = store
        self._guard = guard
        self._relay = relay
        self._works_alone = works_alone
        self._asked: set[asyncio.Task[dict[JobKey, JobRow]]] = set()  #: what the database has still to answer

    async def aclose(self) -> None:
        """
        Wait no longer for what the database was asked.
        """
        here = {task for task in self._asked if task.get_loop() is asyncio.get_running_loop()}
        for task in here:
            task.cancel()
        if here:
            await asyncio.wait(here)

    async def startable(self, leases: Sequence[Lease]) -> list[Lease]:
        """
        Choose the leases whose jobs have not ended by their rows, and settle the others as these say.

        Raises:
            RecordUnavailable: The rows cannot be read, and have to be: the leases were given back.
        """
        doubtful = [lease for lease in leases if self._may_repeat(lease)]
        if not doubtful:
            return list(leases)
        keys = [lease.key for lease in doubtful]
        try:
            rows = await self._read(keys)
        except RecordUnavailable:
            current = self._guard.current
            if self._works_alone and current is not None and not current.lost:
                return list(leases)
            for lease in leases:
                await self._give_back(lease)
            raise
        over = {lease.key: rows[lease.key] for lease in doubtful if _is_over(lease, rows.get(lease.key))}
        for lease in doubtful:
            if lease.key in over:
                await self._settle(lease, over[lease.key])
        return [lease for lease in leases if lease.key not in over]

    async def _read(self, keys: Sequence[JobKey]) -> dict[JobKey, JobRow]:
        asked = start_beside(self._database.read(partial(find, namespace=self._store.namespace, keys=keys)))
        # Its answer may come when nobody waits for it any more.
        self._asked.add(asked)
        asked.add_done_callback(self._answered)
        await asyncio.wait({asked}, timeout=ASKED_FOR_S)
        if not asked.done():
            raise RecordUnavailable(f"the record has not answered for {ASKED_FOR_S} s")
        return asked.result()

    def _answered(self, asked: asyncio.Task[dict[JobKey, JobRow]]) -> None:
        self._asked.discard(asked)
        _ = asked.cancelled() or asked.exception()

    def _may_repeat(self, lease: Lease) -> bool:
        current = self._guard.current
        return (
            lease.attempt > 1
            or lease.crashes > 0
            or (current is not None and current.may_repeat(lease.revision))
        )

    async def _settle(self, lease: Lease, row: JobRow) -> None:
        log.warning("%s was handed out, but its row says otherwise: it does not run", lease.key)
        outcome = bytes(row.outcome or b"")
        with suppress(LeaseLost, JobNotFound):
            if not row.ended:
                # A later revision stands, which the queue has lost.
                await self._relay.bring([row], self._guard.generation)
            elif row.state == JobState.succeeded:
                await self._store.ack(lease, outcome, lateness_ms=row.lateness_ms or 0)
            elif row.state == JobState.dead:
                await self._store.bury(lease, outcome, "recorded", lateness_ms=row.lateness_ms or 0)
            else:
                await self._store.forget([(lease.key, lease.revision)])

    async def _give_back(self, lease: Lease) -> None:
        with suppress(LeaseLost, JobNotFound):
            await self._store.release(lease)


def _is_over(lease: Lease, row: JobRow | None) -> bool:
    # A job without a row was sent without the record, or its row was retired.
    if row is None or row.revision < lease.revision:
        return False
    return row.ended or row.revision > lease.revision
