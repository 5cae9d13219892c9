"""
Outcomes on their way to the record: they are committed together, and wait while the database is away.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from duly.errors import DulyError
from duly.job import JobKey, JobState
from duly.pauses import Pauses
from duly.record.batches import SKIP, filled, run_batch
from duly.record.crashpoints import crash_point
from duly.record.dialects import choose, dialect_of, told_once
from duly.record.runs import EndedRun
from duly.record.stored import pick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from duly.record.database import Database

log = logging.getLogger("duly.outcomes")

MOST, MOST_BYTES = 10_000, 32 * 1024 * 1024  #: that wait, before no more is claimed
AT_ONCE, AT_ONCE_BYTES = 1_000, 4 * 1024 * 1024  #: in one transaction
AGAIN_S = (0.02, 0.5)  #: after how long a job that was locked is tried again: at first, and at most
TELL_S = 10.0  #: that jobs are locked, before the log says so

#: A run, and the generation of the Redis that it ended in.
Item = tuple[EndedRun, int]


def write_runs(
    connection: Connection,
    namespace: str,
    runs: Sequence[Item],
    *,
    new: bool = False,
    skip_locked: bool = False,
) -> frozenset[JobKey]:
    """
    Write what became of runs: once more, it changes nothing.

    A job that is not open any more at the run's revision, or was given to a later Redis, stays as it is.
    Rows that another transaction has locked are waited for; with *skip_locked* they are passed over.

    Returns: the jobs that were passed over, to be written again later with all of their runs; their
    rows in the table of runs may be there already.

    Raises:
        IntegrityError: They were said to be *new*, which saves PostgreSQL a look for each, and one is not.
    """
    if not runs:
        return frozenset()
    fixed, wait = {"namespace": namespace}, not skip_locked
    counts = {run.key: run.count_row() for run, _ in runs if not run.state.ended}
    ends = {run.key: run.end_row(generation) for run, generation in runs if run.state.ended}
    counted = run_batch(connection, "count", fixed, list(counts.values()), wait=wait)
    if dialect_of(connection) == "postgresql":
        ended = _write_unnested(connection, namespace, runs, new=new, wait=wait)
    else:
        told = [run.attempt_row() for run, _ in runs if run.token]
        run_batch(connection, "attempt", fixed, told, wait=True)
        ended = run_batch(connection, "end", fixed, list(ends.values()), wait=wait)
    if wait or (counted == len(counts) and ended == len(ends)):
        return frozenset()
    return _passed_over(connection, namespace, counts, ends)


def _passed_over(
    connection: Connection,
    namespace: str,
    counts: Mapping[JobKey, dict[str, Any]],
    ends: Mapping[JobKey, dict[str, Any]],
) -> frozenset[JobKey]:
    """
    The jobs whose rows, as they are committed, do not say yet what was written.

    A row that does not fit now never will: revisions and generations grow, and what has ended does not open
    again at the same revision.
    """
    columns = ("topic", "id", "revision", "generation", "attempts", "crashes")
    found: set[JobKey] = set()
    for topic, id_, revision, generation, attempts, crashes in pick(
        connection, columns, namespace, {**counts, **ends}, still_open=True
    ):
        key = JobKey(topic, id_)
        end, count = ends.get(key), counts.get(key)
        if end is not None and revision == end["revision"] and generation <= end["generation"]:
            found.add(key)
        elif count is not None and revision == count["revision"]:
            less = attempts < count["attempts"] or crashes < count["crashes"]
            found |= {key} if less else set()
    return frozenset(found)


def _write_unnested(
    connection: Connection, namespace: str, runs: Sequence[Item], *, new: bool, wait: bool
) -> int:
    """
    Write all of them with one statement, column by column; how many jobs ended by it.
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
    words = filled(
        "runs",
        chosen=chosen,
        arrays=arrays,
        apart=apart,
        unless_there=unless_there,
        unless_locked="" if wait else SKIP,
    )
    return connection.execute(words, values | fixed).rowcount


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

    A run whose job is locked, by a transaction of a user say, waits aside and is tried again: the others go
    on.  It counts among those that wait, and later runs of the same job wait behind it.
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
        self._aside: dict[JobKey, list[Item]] = {}
        self._aside_count = 0
        self._pauses = Pauses(*AGAIN_S)  #: between tries of what is aside
        self._again_s = 0.0  #: when the next one is
        self._aside_since_s = 0.0  #: when one of them was written last, or told of
        self._came = asyncio.Event()
        self._bytes = 0
        self._known = 0  #: the last generation that was found sound
        self._ahead = True  #: of the net, as far as is known
        self._sender: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()  #: that of no run: what is sent is of many

    def __len__(self) -> int:
        return len(self._waiting) + self._aside_count

    @property
    def full(self) -> bool:
        """
        Whether so much waits for the database that no more work should be begun.
        """
        return len(self) >= self._most or self._bytes >= MOST_BYTES

    def put(self, run: EndedRun) -> None:
        """
        Take over what became of a run; the store has said ok to it.
        """
        crash_point("outcome.acked")
        self._known = self._generation() or self._known
        self._waiting.append((run, self._known))
        self._bytes += run.size
        self._came.set()
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
            while len(self):
                was_full = self.full
                if self._waiting:
                    await self._send(self._next_batch())
                else:
                    await self._until_again()
                if self._aside and time.monotonic() >= self._again_s:
                    await self._send_aside()
                if was_full and not self.full:
                    self.room()
            self._ahead = True
        finally:
            self._sender = None

    async def _until_again(self) -> None:
        """
        Wait for the next try of what is aside, or for another run.
        """
        self._came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._again_s - time.monotonic()):
                await self._came.wait()

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
        # Those of a job that waits aside keep behind its earlier runs.
        ready = [item for item in batch if item[0].key not in self._aside]
        pauses = Pauses()
        locked: frozenset[JobKey] = frozenset()
        while ready:
            try:
                locked = await self._write(ready)
            except DulyError as error:
                log.warning("%d outcomes not in the record yet: %s", len(self), error)
                await asyncio.sleep(pauses.take())
                continue
            except SQLAlchemyError:
                locked = await self._write_singly(ready)
            break
        for item in batch:
            self._waiting.popleft()
            if item[0].key in locked or item[0].key in self._aside:
                self._put_aside(item)
            else:
                self._bytes -= item[0].size

    def _put_aside(self, item: Item) -> None:
        if not self._aside:
            self._pauses.reset()
            self._aside_since_s = time.monotonic()
            self._again_s = self._aside_since_s + self._pauses.take()
        self._aside.setdefault(item[0].key, []).append(item)
        self._aside_count += 1

    async def _send_aside(self) -> None:
        """
        Try runs that wait aside, those first that were not tried for the longest time.
        """
        batch: list[Item] = []
        size = 0
        for items in self._aside.values():
            size += sum(run.size for run, _ in items)
            if batch and (len(batch) + len(items) > AT_ONCE or size > AT_ONCE_BYTES):
                break
            batch += items
        tried = dict.fromkeys(run.key for run, _ in batch)
        try:
            locked = await self._write(batch, new=False)
        except DulyError as error:
            log.warning("%d outcomes not in the record yet: %s", len(self), error)
            self._again_s = time.monotonic() + self._pauses.take()
            return
        except SQLAlchemyError:
            locked = await self._write_singly(batch)
        for key in tried:
            items = self._aside.pop(key)
            if key in locked:
                self._aside[key] = items
            else:
                self._aside_count -= len(items)
                self._bytes -= sum(run.size for run, _ in items)
        now_s = time.monotonic()
        if len(locked) < len(tried):
            self._pauses.reset()
            self._aside_since_s = now_s
        elif now_s > self._aside_since_s + TELL_S:
            log.warning("%d outcomes wait for rows that open transactions have locked", self._aside_count)
            self._aside_since_s = now_s
        self._again_s = now_s + self._pauses.take()

    async def _write(self, batch: list[Item], *, new: bool = True) -> frozenset[JobKey]:
        """
        Write runs; the answer names the jobs that others have locked.
        """
        try:
            locked = await self._commit(batch, new=new and self._ahead)
        except IntegrityError:
            if not (new and self._ahead):
                raise
            # A commit whose answer was lost, or the net, came before; then it does so for all that wait.
            self._ahead = False
            locked = await self._commit(batch, new=False)
        crash_point("outcome.committed")
        return locked

    async def _commit(self, batch: list[Item], *, new: bool) -> frozenset[JobKey]:
        def work(connection: Connection) -> frozenset[JobKey]:
            locked = write_runs(connection, self._namespace, batch, new=new, skip_locked=True)
            crash_point("outcome.written")
            return locked

        return await self._database.write(work)

    async def _write_singly(self, batch: list[Item]) -> frozenset[JobKey]:
        """
        Find out which one the database does not take: it must not hold up the others.

        Returns: the jobs to try again.
        """
        locked: frozenset[JobKey] = frozenset()
        for item in batch:
            try:
                locked |= await self._write([item], new=False)
            except DulyError as error:
                log.warning("%d outcomes not in the record yet: %s", len(self), error)
                locked |= {item[0].key}  # it is tried again
            except SQLAlchemyError as error:
                # Named, without what the database says: that may quote the outcome.
                log.error(  # noqa: TRY400  # as above
                    "the record does not take the outcome of %s (%s); Redis keeps it",
                    item[0].key,
                    type(error).__name__,
                )
        return locked
