"""
Rows by way of a record: promised in its database first, many in one transaction, then taken to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import make_url

from duly.bulk import in_bulk
from duly.errors import (
    DulyError,
    JobExists,
    LayoutMismatch,
    OutcomeUnknown,
    ServerUnsuitable,
    StoreUnavailable,
)
from duly.job import JobKey, JobState, Lane, Order
from duly.record.assembly import WholeRecord
from duly.record.clock import Clock
from duly.record.database import Database
from duly.record.rows import row_of, same
from duly.record.schema import require
from duly.record.stored import find
from duly.record.target import Target
from duly.spark.packing import REQUEST_BYTES, arguments
from duly.spark.plan import said
from duly.spark.sending import PATIENCE_S, TAKEN, Loop
from duly.spark.tally import Tally
from duly.store import Store
from duly.store.packing import SPEC

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from duly.job import Placed
    from duly.record.rows import JobRow
    from duly.spark.options import WriteOptions
    from duly.spark.packing import Parcel

log = logging.getLogger("duly.spark")

PAUSE_S = 0.5  #: before rows are sent once more whose promise was not answered
STEP = 1_000  #: rows that a plan looks up at once


class Recorder:
    """
    Has a record promise the rows of one task, and counts what became of them.
    """

    def __init__(
        self,
        loop: Loop,
        options: WriteOptions,
        shards: int,
        refuse: Callable[[Parcel, dict[int, str]], None],
        pace: Callable[[int], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.tally = Tally()
        self._loop = loop
        self._on_conflict = options.on_conflict
        self._refuse = refuse
        self._pace = pace
        self._record: WholeRecord = loop.call(_opened(loop, options, shards))

    def send(self, parcel: Parcel) -> None:
        """
        Have a batch promised, and what is due soon taken to the queue.

        Raises:
            RecordUnavailable, OutcomeUnknown: The database is away; running the task again is safe.
        """
        wanted = {place: _wanted(parcel, place, self._on_conflict) for place in _accepted(parcel)}
        refused: dict[int, str] = {}
        for place, answer in self._loop.call(self._promised(wanted)).items():
            if isinstance(answer, JobExists):
                refused[place] = TAKEN
                continue
            match answer.word:
                case "created":
                    self.tally.new += 1
                case "kept":
                    self.tally.kept += 1
                case _:
                    self.tally.replaced += 1
        if refused:
            self._refuse(parcel, refused)

    def finish(self) -> Tally:
        """
        Wait until the rows say what the queue has been given.
        """
        self._loop.call(self._record.settle())
        return self.tally

    async def _promised(self, wanted: dict[int, tuple[Order, bytes]]) -> dict[int, Placed | JobExists]:
        """
        What became of each; those without an answer are sent again for a while, which finds what was done.
        """
        answers: dict[int, Any] = {}
        give_up_s = time.monotonic() + PATIENCE_S
        while left := [place for place in wanted if place not in answers]:
            found = dict(zip(left, await self._send([wanted[place] for place in left]), strict=True))
            lasting = [each for each in found.values() if isinstance(each, LayoutMismatch | ServerUnsuitable)]
            if lasting:
                raise lasting[0]
            failed = [each for each in found.values() if isinstance(each, StoreUnavailable | OutcomeUnknown)]
            if failed:
                if time.monotonic() > give_up_s:
                    raise failed[0]
                await asyncio.sleep(PAUSE_S)
            answers |= {
                place: each
                for place, each in found.items()
                if not isinstance(each, StoreUnavailable | OutcomeUnknown)
            }
        return answers

    async def _send(self, wanted: Sequence[tuple[Order, bytes]]) -> list[Placed | DulyError]:
        async def send(_: int, batch: list[tuple[Order, bytes]]) -> list[Placed | DulyError]:
            if self._pace is not None:
                await self._pace(len(batch))
            return await self._record.promise(batch)

        return await in_bulk(send, 1, ((0, *each) for each in wanted))


class RecordPlanner:
    """
    Looks at the record for the rows of one task, and changes nothing: the twin of what it would promise.
    """

    def __init__(
        self,
        loop: Loop,
        options: WriteOptions,
        shards: int,
        refuse: Callable[[Parcel, dict[int, str]], None],
    ) -> None:
        self.tally = Tally()
        self._loop = loop
        self._options = options
        self._refuse = refuse
        self._seen: set[JobKey] = set()
        self._store = Store(loop.link, namespace=options.namespace, shards=shards)
        self._database: Database = loop.call(_database(loop, options))
        self._clock = Clock(self._store)

    def send(self, parcel: Parcel) -> None:
        """
        Compare a batch with what is promised.
        """
        places = _accepted(parcel)
        refused: dict[int, str] = {}
        for at in range(0, len(places), STEP):
            some = {
                place: _wanted(parcel, place, self._options.on_conflict) for place in places[at : at + STEP]
            }
            rows = self._loop.call(self._rows([order.key for order, _ in some.values()]))
            for place, (order, request) in some.items():
                self._compare(place, order, request, rows.get(order.key), refused)
        if refused:
            self._refuse(parcel, refused)

    def finish(self) -> Tally:
        """
        What was found.
        """
        return self.tally

    async def _rows(self, keys: list[JobKey]) -> dict[JobKey, JobRow]:
        await self._clock.look()
        return await self._database.read(partial(find, namespace=self._store.namespace, keys=keys))

    def _compare(
        self, place: int, order: Order, request: bytes, old: JobRow | None, refused: dict[int, str]
    ) -> None:
        fresh = row_of(self._store.namespace, order, request, self._clock.now())
        if old is None and order.key not in self._seen:
            self._seen.add(order.key)
            self.tally.new += 1
            self.tally.show("new", f"{order.key} due {said(fresh.due_ms)}")
        elif order.on_conflict == "raise":
            refused[place] = TAKEN
        elif order.on_conflict == "keep" or (old is not None and same(old, fresh)):
            self.tally.kept += 1
        else:
            self.tally.replaced += 1
            was = f"{JobState(old.state).name}, due {said(old.due_ms)}" if old is not None else "another row"
            self.tally.show("replaced", f"{order.key} due {said(fresh.due_ms)} (was {was})")


def check_record(options: WriteOptions, shards: int) -> None:
    """
    See once, on the driver, that the record can be used: its tables fit, and it is that of this queue.

    Raises:
        DulyError: It cannot; the message says why.
    """
    loop = Loop(options.url)
    try:
        if options.plan:
            loop.call(_database(loop, options))
        else:
            loop.call(_opened(loop, options, shards))
    finally:
        loop.close()


def bring(options: WriteOptions, shards: int) -> None:
    """
    Take to the queue what is promised and due soon, and what no task could take there.

    Where that fails, too, the relay of any process with this record does it.
    """
    loop = Loop(options.url)
    try:
        record: WholeRecord = loop.call(_opened(loop, options, shards))
        loop.call(record.bring())
    except DulyError as error:
        log.warning("some promised jobs are not in Redis yet: %s", error)
    finally:
        loop.close()


def absolute(url: str) -> str:
    """
    The URL of a record for processes that may run in another folder.
    """
    parts = make_url(url)
    if parts.get_backend_name() == "sqlite" and parts.database:
        parts = parts.set(database=str(Path(parts.database).absolute()))
    return parts.render_as_string(hide_password=False)


async def _opened(loop: Loop, options: WriteOptions, shards: int) -> WholeRecord:
    store = Store(loop.link, namespace=options.namespace, shards=shards)
    # How long ended rows are kept is the business of who removes them, which is never a task.
    record = WholeRecord(_target(options), store, horizon_ms=options.horizon_ms, keep_ms=0)
    loop.at_end(record.aclose)
    await record.open()
    await record.agreed()
    return record


def _target(options: WriteOptions) -> Target:
    return Target(options.record, schema=options.record_schema or None)


async def _database(loop: Loop, options: WriteOptions) -> Database:
    database = Database(_target(options))
    loop.at_end(database.aclose)
    await database.read(require)
    return database


def _accepted(parcel: Parcel) -> list[int]:
    places: list[int] = np.flatnonzero(parcel.rows.is_valid().to_numpy(zero_copy_only=False)).tolist()
    return places


def _wanted(parcel: Parcel, place: int, on_conflict: Any) -> tuple[Order, bytes]:
    """
    The order of a row, and the bytes that tell a replay of this call from another one.
    """
    member, head, rest = arguments(parcel.rows[place].as_py())
    request = rest[:REQUEST_BYTES]
    if place in parcel.orders:
        return parcel.orders[place], request
    # Packed by columns: a row without options and envelope.
    spec, due_ms = SPEC.unpack(head)
    order = Order(
        JobKey.of(member),
        rest[REQUEST_BYTES:],
        due_ms=due_ms,
        lane=Lane(spec >> 3 & 3),
        on_conflict=on_conflict,
    )
    return order, request
