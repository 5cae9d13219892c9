"""
What Redis has of jobs whose rows are about to change: asked for, ended first, or held until that is done.

Redis decides what runs, so a change of a row alone comes too late for a job that starts at that moment: it
would be told to be cancelled and run to its end, or be rescheduled and run twice.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from duly.errors import (
    Conflict,
    JobNotFound,
    LayoutMismatch,
    RecordUnavailable,
    ServerUnsuitable,
    StoreUnavailable,
)
from duly.job import JobState
from duly.record.database import ANSWERS_WITHIN_S
from duly.record.writes import Seen
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from duly.job import Job, JobKey
    from duly.record.absence import Absence
    from duly.store import Held, Store

log = logging.getLogger("duly.record")

HOLD_MS = (ANSWERS_WITHIN_S + 5) * 1_000  #: how late a job may be whose process dies while its row changes


class Holding:
    """
    Jobs of a store, while somebody changes their rows.
    """

    def __init__(self, store: Store, absence: Absence) -> None:
        self._store = store
        self._absence = absence

    async def seen(self, keys: Sequence[JobKey]) -> dict[JobKey, Seen]:
        """
        What Redis says of jobs; nothing while it is away, as the rows decide then.
        """
        found = await self.found(keys)
        return {key: Seen(job.revision, job.state) for key, job in found.items()}

    async def found(self, keys: Sequence[JobKey]) -> dict[JobKey, Job]:
        """
        The jobs that Redis has; none while it is away.
        """
        try:
            found = await self._absence.ask(partial(Views(self._store).get_many, keys))
        except StoreUnavailable as error:
            log.debug("the rows decide alone: %s", error)
            return {}
        return {job.key: job for job in found if job is not None}

    async def end(
        self, keys: Sequence[JobKey], reason: str, revision: int | None = None
    ) -> dict[JobKey, Seen]:
        """
        End what Redis has of jobs, and tell what became of it: no run of these begins while the rows change.

        With a *revision* only that one is ended.
        """
        seen = await self.seen(keys)
        open_ = [key for key in seen if not seen[key].state.ended]
        # Redis may have another revision than the row, which decides.
        with suppress(StoreUnavailable, Conflict):
            states = await self._absence.ask(
                partial(self._store.cancel, open_, reason=reason, revision=revision)
            )
            for key, state in zip(open_, states, strict=True):
                if isinstance(state, JobState):
                    seen[key] = Seen(seen[key].revision, state)
        return seen

    @asynccontextmanager
    async def held(self, key: JobKey, revision: int | None) -> AsyncIterator[dict[JobKey, Seen]]:
        """
        Keep a job that waits from starting while its row changes; what Redis says of it, as of `seen`.
        """
        held: Held | None = None
        try:
            held = await self._absence.ask(
                partial(self._store.hold, key, least_ms=HOLD_MS, revision=revision)
            )
        except StoreUnavailable as error:
            log.debug("the rows decide alone: %s", error)
        try:
            yield {} if held is None else {key: Seen(held.revision, held.state)}
        except (Conflict, JobNotFound, RecordUnavailable, LayoutMismatch, ServerUnsuitable):
            # After anything else the row may have changed all the same: rather late than twice.
            if held is not None and held.waits:
                with suppress(StoreUnavailable):
                    await self._absence.ask(partial(self._store.let_go, held))
            raise
