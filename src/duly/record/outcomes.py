"""
Outcomes on their way to the record: they are committed together, and wait while the database is away.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from duly.errors import DulyError
from duly.job import JobState
from duly.pauses import Pauses
from duly.record.batches import filled, run_batch
from duly.record.crashpoints import crash_point
from duly.record.dialects import choose, told_once
from duly.record.runs import EndedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from duly.job import JobKey
    from duly.record.database import Database

log = logging.getLogger("duly.outcomes")

MOST, MOST_BYTES = 10_000, 32 * 1024 * 1024  #: that wait, before no more is claimed
AT_ONCE, AT_ONCE_BYTES = 1_000, 4 * 1024 * 1024  #: in one transaction

#: A run, and the generation of the Redis that it ended in.
Item = tuple[EndedRun, int]


def write_runs(connection: Connection, namespace: str, runs: Sequence[Item], *, new: bool = False) -> None:
    """
    Write what became of runs: once more, it changes nothing.

    A job that is not open any more at the run's revision, or was given to a later Redis, stays as it is.

    Raises:
        IntegrityError: They were said to be *new*, which saves PostgreSQL a look for each, and one is not.
    """
    if not runs:
        return
    counts = {run.key: run.count_row() for run, _ in runs if not run.state.ended}
    fixed = {"namespace": namespace}
    run_batch(connection, "count", fixed, list(counts.values()))
    if connection.dialect.name == "postgresql":
        _write_unnested(connection, namespace, runs, new=new)
        return
    ends = {run.key: run.end_row(generation) for run, generation in runs if run.state.ended}
    run_batch(connection, "attempt", fixed, [run.attempt_row() for run, _ in runs if run.token])
    run_batch(connection, "end", fixed, list(ends.values()))


def _write_unnested(connection: Connection, namespace: str, runs: Sequence[Item], *, new: bool) -> None:
    """
    Write all of them with one statement, column by column.
    """
    # In one order everywhere, so that two transactions with the same rows seldom wait for each other.
    ended, generations = zip(*sorted(runs, key=_key), strict=True)
    columns = dict(zip(_FIELDS, zip(*map(attrgetter(*_FIELDS), ended), strict=True), strict=True))
    topics, ids = zip(*columns.pop("key"), strict=True)
    columns |= {"topic": topics, "id": ids, "generation": generations}
    values, many = told_once(columns, "id")
    fixed = {"namespace": namespace, "succeeded": JobState.succeeded.value}
    chosen, arrays, apart = choose(_KINDS, many)
    unless_there = "" if new else "ON CONFLICT DO NOTHING"
    words = filled("runs", chosen=chosen, arrays=arrays, apart=apart, unless_there=unless_there)
    connection.execute(words, values | fixed)


def _key(item: Item) -> JobKey:
    return item[0].key


_FIELDS = EndedRun.__struct_fields__
#: What PostgreSQL calls the fields of runs.
_KINDS = {
    "topic": "text",
    "id": "text",
    "revision": "bigint",
    "token": "bigint",
    "word": "text",
    "state": "smallint",
    "attempt": "integer",
    "attempts": "integer",
    "crashes": "integer",
    "worker": "text",
    "started_ms": "bigint",
    "ended_ms": "bigint",
    "lateness_ms": "bigint",
    "outcome": "bytea",
    "generation": "integer",
}


class Outcomes:
    """
    A bounded queue of ended runs, emptied by one task as fast as the database takes them.
    """

    def __init__(
        self,
        database: Database,
        namespace: str,
        *,
        generation: Callable[[], int | None],
        most: int = MOST,
        room: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Prepare: *room* is called when there is room again after there was none.
        """
        self.room = room
        self._database = database
        self._namespace = namespace
        self._generation = generation
        self._most = most
        self._waiting: deque[Item] = deque()
        self._bytes = 0
        self._known = 0  #: the last generation that was found sound
        self._ahead = True  #: of the net, as far as is known
        self._sender: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()  #: that of no run: what is sent is of many

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """
        Whether so much waits for the database that no more work should be begun.
        """
        return len(self._waiting) >= self._most or self._bytes >= MOST_BYTES

    def put(self, run: EndedRun) -> None:
        """
        Take over what became of a run; the store has said ok to it.
        """
        crash_point("outcome.acked")
        self._known = self._generation() or self._known
        self._waiting.append((run, self._known))
        self._bytes += run.size
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(
                self._send_all(), context=self._context.copy()
            )

    async def finish(self, within_s: float) -> int:
        """
        Wait until everything is committed, at most *within_s*; how many are not, and left to the events.
        """
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=within_s)
        if self._sender is not None:
            self._sender.cancel()
            log.warning("%d outcomes are not in the record; the events of Redis tell them", len(self))
        return len(self)

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                was_full = self.full
                await self._send(self._next_batch())
                if was_full and not self.full:
                    self.room()
            self._ahead = True
        finally:
            self._sender = None

    def _next_batch(self) -> list[Item]:
        batch: list[Item] = []
        size = 0
        for item in self._waiting:
            size += item[0].size
            if batch and (len(batch) >= AT_ONCE or size > AT_ONCE_BYTES):
                break
            batch.append(item)
        return batch

    async def _send(self, batch: list[Item]) -> None:
        """
        Commit a batch, however long the database is away; only then it leaves the queue.
        """
        pauses = Pauses()
        while True:
            try:
                await self._write(batch)
            except DulyError as error:
                log.warning("%d outcomes not in the record yet: %s", len(self), error)
                await asyncio.sleep(pauses.take())
                continue
            except SQLAlchemyError:
                await self._write_singly(batch)
            break
        for run, _ in batch:
            self._waiting.popleft()
            self._bytes -= run.size

    async def _write(self, batch: list[Item]) -> None:
        try:
            await self._commit(batch, new=self._ahead)
        except IntegrityError:
            if not self._ahead:
                raise
            # A commit whose answer was lost, or the net, came before; then it does so for all that wait.
            self._ahead = False
            await self._commit(batch, new=False)
        crash_point("outcome.committed")

    async def _commit(self, batch: list[Item], *, new: bool) -> None:
        def work(connection: Connection) -> None:
            write_runs(connection, self._namespace, batch, new=new)
            crash_point("outcome.written")

        await self._database.write(work)

    async def _write_singly(self, batch: list[Item]) -> None:
        """
        Find out which one the database does not take: it must not hold up the others.
        """
        for item in batch:
            try:
                await self._write([item])
            except SQLAlchemyError as error:
                # Named, without what the database says: that may quote the outcome.
                log.error(  # noqa: TRY400  # as above
                    "the record does not take the outcome of %s (%s); Redis keeps it",
                    item[0].key,
                    type(error).__name__,
                )
