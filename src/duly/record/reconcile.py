"""
Reconcile in process: compare every row with the queue and every job of the queue with the rows, and mend.

Both sides are read in steps of a bounded size, so the memory does not grow with the
database.  Whatever differs is looked at a second time before anything is done about it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from duly.record.crashpoints import crash_point
from duly.record.mending import (
    Ended,
    adopt,
    known,
    page_of,
    promise_anew,
    record_ends,
    relay_once_more,
    rows_of,
)
from duly.record.rules import Difference, judge
from duly.record.sight import adopted, look_up, members
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duly.job import JobKey
    from duly.record.database import Database
    from duly.record.rules import Promised
    from duly.store import Store

STEP = 1_000
EXAMPLES = 20  #: of each kind of difference that a report names


@dataclass
class Report:
    """
    What a reconciliation found, and did about it.
    """

    rows: int = 0  #: of the record that were compared
    jobs: int = 0  #: of the queue that were compared
    on_its_way: int = 0  #: rows that the relay takes to the queue now or near their time
    found: Counter[Difference] = field(default_factory=Counter)
    repaired: Counter[Difference] = field(default_factory=Counter)
    examples: dict[Difference, list[str]] = field(default_factory=dict)


class Reconciler:
    """
    One comparison of all there is.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        *,
        apply: bool,
        generation: int,
        tell: Callable[[Report], None] = lambda _: None,
    ) -> None:
        self.report = Report()
        self._database = database
        self._store = store
        self._apply = apply
        self._generation = generation
        self._tell = tell

    async def run(self) -> Report:
        """
        Compare everything once; with *apply* mend what differs.

        Raises:
            StoreUnavailable, RecordUnavailable: What was mended before stays mended; run it again.
        """
        await self._rows()
        await self._jobs()
        return self.report

    async def mend(self, keys: Sequence[JobKey]) -> None:
        """
        Compare the jobs of *keys* only; with *apply* mend those that differ.

        Raises:
            StoreUnavailable, RecordUnavailable: As of `run`.
        """
        for at in range(0, len(keys), STEP):
            some = list(keys[at : at + STEP])
            await self._meet(
                some, await self._database.read(partial(rows_of, namespace=self._store.namespace, keys=some))
            )

    async def close(self, ends: Sequence[Ended]) -> list[JobKey]:
        """
        Choose of *ends*, which somebody else remembers, those of open rows that the queue does not have; with
        *apply* write them down.

        Raises:
            StoreUnavailable, RecordUnavailable: As of `run`.
        """
        keys = [end.key for end in ends]
        rows = await self._database.read(partial(rows_of, namespace=self._store.namespace, keys=keys))
        lost = await self._judge(keys, rows)
        chosen = [
            end
            for end in ends
            if lost.get(end.key) is Difference.missing and rows[end.key].revision == end.revision
        ]
        if self._apply:
            await self._database.write(
                partial(
                    record_ends,
                    namespace=self._store.namespace,
                    ends=chosen,
                    now_ms=time.time_ns() // 1_000_000,
                )
            )
        return [end.key for end in chosen]

    async def _rows(self) -> None:
        after: JobKey | None = None
        while True:
            page = await self._database.read(
                partial(page_of, namespace=self._store.namespace, after=after, limit=STEP)
            )
            if not page:
                return
            self.report.rows += len(page)
            self.report.on_its_way += sum(row.promised.on_its_way for row in page)
            await self._meet([row.key for row in page], dict(page))
            after = page[-1].key
            self._tell(self.report)

    async def _jobs(self) -> None:
        async for keys in members(self._store):
            self.report.jobs += len(keys)
            there = await self._database.read(partial(known, namespace=self._store.namespace, keys=keys))
            # Those with a row were compared by the pass over the rows.
            strange = [key for key in keys if key not in there]
            if strange:
                await self._meet(strange, {})
            self._tell(self.report)

    async def _meet(self, keys: Sequence[JobKey], rows: dict[JobKey, Promised]) -> None:
        differing = await self._judge(keys, rows)
        if not differing:
            return
        # Something may have been under way between the two looks.
        rows = await self._database.read(
            partial(rows_of, namespace=self._store.namespace, keys=list(differing))
        )
        again = await self._judge(list(differing), rows)
        certain = {key: kind for key, kind in again.items() if differing[key] is kind}
        for key, kind in certain.items():
            self.report.found[kind] += 1
            named = self.report.examples.setdefault(kind, [])
            if len(named) < EXAMPLES:
                named.append(str(key))
        if self._apply:
            for kind in Difference:
                chosen = [key for key in certain if certain[key] is kind]
                if chosen:
                    await self._repair(kind, chosen, rows)
                    self.report.repaired[kind] += len(chosen)
                    crash_point(f"reconcile.{kind}")

    async def _judge(self, keys: Sequence[JobKey], rows: dict[JobKey, Promised]) -> dict[JobKey, Difference]:
        seen = await look_up(self._store, keys)
        judged = (
            (key, judge(rows.get(key), job and job.queued)) for key, job in zip(keys, seen, strict=True)
        )
        return {key: kind for key, kind in judged if kind is not None}

    async def _repair(self, kind: Difference, keys: list[JobKey], rows: dict[JobKey, Promised]) -> None:
        namespace, now_us = self._store.namespace, time.time_ns() // 1_000
        stand = [(key, rows[key].revision) for key in keys if key in rows]
        match kind:
            case Difference.missing | Difference.behind:
                await self._database.write(partial(relay_once_more, namespace=namespace, rows=stand))
            case Difference.due | Difference.payload:
                await self._database.write(
                    partial(promise_anew, namespace=namespace, rows=stand, now_us=now_us)
                )
            case Difference.finished:
                await self._store.forget(stand)
            case Difference.unrecorded:
                ends = await self._ends(keys)
                await self._database.write(
                    partial(record_ends, namespace=namespace, ends=ends, now_ms=now_us // 1_000)
                )
            case Difference.orphan | Difference.ahead:
                found = await adopted(self._store, keys, self._generation, now_us // 1_000)
                await self._database.write(partial(adopt, rows=found))

    async def _ends(self, keys: list[JobKey]) -> list[Ended]:
        return [
            Ended(
                job.key,
                job.revision,
                job.state,
                job.outcome,
                job.attempts,
                job.crashes,
                job.started_ms,
                job.ended_ms,
                job.lateness_ms,
            )
            for job in await Views(self._store).get_many(keys)
            if job is not None and job.state.ended
        ]
