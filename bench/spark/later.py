"""
Far-future jobs with a life of their own: what was asked of each, and what became of it.

Rows are numbered; number and size of the table give the due time, so that the whole can be checked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from duly.connection import Link
from duly.feed import Feed
from duly.job import JobKey, JobState
from duly.namespace import create
from duly.spark.events.shards import Shards
from duly.spark.horizon import put_off
from duly.spark.horizon.hydrating import Report, hydrate
from duly.spark.horizon.queue import Queue
from duly.spark.horizon.table import HorizonTable
from duly.store import Finish, Keeping, Store, Want

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
BEGIN_MS = 1_800_000_000_000
DAYS = 90
TOPIC, NAMESPACE = "renewal", "bench"
LATE_EVERY = 6  #: hours, after which rows are added that are due before the end of the pass just made


@dataclass
class Later:
    """
    A table, its queue on a test clock, and a worker that runs what is due.
    """

    spark: SparkSession
    url: str
    path: str
    rows: int
    now_ms: int = BEGIN_MS
    due: dict[str, int | None] = field(default_factory=dict)  #: what was changed: its time, None is cancelled
    ran: dict[str, int] = field(default_factory=dict)  #: id -> the due time that it ran with
    early: int = 0
    twice: int = 0
    asked: dict[str, int] = field(default_factory=dict)  #: how many changes of which kind
    _claims: int = 0

    # -- the table ----------------------------------------------------------------------------------------

    def put(self) -> int:
        """
        Put all rows off, due over the days.
        """
        frame = self.spark.range(self.rows).selectExpr(
            "concat('c', id) as id",
            f"timestamp_millis({BEGIN_MS} + id * {DAYS * 24 * HOUR_MS} div {self.rows}) as due_at",
            """concat('{"customer":', id, ',"template":"renewal","locale":"de"}') as payload""",
        )
        return put_off(frame, self.path, topic=TOPIC)

    def put_late(self, count: int) -> None:
        """
        Add rows that are due within the window of the pass that is over.
        """
        due_ms = self.now_ms + HOUR_MS // 2
        rows = [
            (f"late-{due_ms}-{n}", datetime.fromtimestamp(due_ms / 1000, UTC), "{}") for n in range(count)
        ]
        frame = self.spark.createDataFrame(rows, "id string, due_at timestamp, payload string")
        self._note("rows added after their pass", put_off(frame, self.path, topic=TOPIC))
        self.due.update((id_, due_ms) for id_, _, _ in rows)

    def hydrate(self) -> Report:
        """
        Make a pass over the next hour.
        """
        queue = Queue(self.url, NAMESPACE, now_ms=self.now_ms)
        return hydrate(self.spark, HorizonTable(self.path), queue, window_ms=HOUR_MS)

    def due_in(self, hour: int) -> range:
        """
        The numbers of rows that were written as due in that hour.
        """
        hours = DAYS * 24
        return range(-(-hour * self.rows // hours), -(-(hour + 1) * self.rows // hours))

    # -- the queue ----------------------------------------------------------------------------------------

    async def create(self) -> None:
        """
        Make the queue.
        """
        link = Link(self.url)
        await create(link, NAMESPACE, 1, clock="test")
        await link.aclose()

    def _store(self) -> Store:
        return Store(Link(self.url), namespace=NAMESPACE, now=lambda: self.now_ms, keeping=Keeping(done_ms=0))

    async def change(self, hour: int) -> None:
        """
        Cancel and reschedule jobs that are in the queue, and others that wait in the table.
        """
        store = self._store()
        for number, away in ((hour, False), (hour + 2, True)):
            ids = [f"c{n}" for n in self.due_in(number) if f"c{n}" not in self.due][:40]
            side = "table" if away else "queue"
            await self._cancel(store, ids[:10], f"cancelled in the {side}")
            await self._reschedule(store, ids[10:20], (hour + 3) * HOUR_MS, f"put later in the {side}")
            if away:
                await self._reschedule(store, ids[20:30], (hour + 1) * HOUR_MS, "put sooner in the table")
        await store.link.aclose()

    async def _cancel(self, store: Store, ids: list[str], what: str) -> None:
        if not ids:
            return
        for answer in await store.cancel([JobKey(TOPIC, id_) for id_ in ids]):
            assert answer in ("accepted", JobState.cancelled), answer
        self.due.update(dict.fromkeys(ids))
        self._note(what, len(ids))

    async def _reschedule(self, store: Store, ids: list[str], after_ms: int, what: str) -> None:
        due_ms = BEGIN_MS + after_ms + HOUR_MS // 4
        for id_ in ids:
            assert (await store.reschedule(JobKey(TOPIC, id_), due_ms=due_ms)).word in (
                "accepted",
                "rescheduled",
            )
        self.due.update(dict.fromkeys(ids, due_ms))
        self._note(what, len(ids))

    def _note(self, what: str, count: int) -> None:
        self.asked[what] = self.asked.get(what, 0) + count

    async def work(self) -> None:
        """
        Run whatever is due by now, and forget it.
        """
        store = self._store()
        while True:
            self._claims += 1
            wants = [Want(TOPIC, 128, 60_000)]
            leases = (await store.claim(0, wants, worker="w", number=self._claims)).leases
            if not leases:
                break
            for lease in leases:
                self.early += lease.due_ms > self.now_ms
                self.twice += lease.key.id in self.ran
                self.ran[lease.key.id] = lease.due_ms
            words = await store.finish("ack", 0, [Finish(lease, 0, (b"",)) for lease in leases])
            assert {b"ok"} == set(words)
        while (await store.prune(0))[1]:
            pass
        await self._forget_events(store)
        await store.link.aclose()

    async def _forget_events(self, store: Store) -> None:
        """
        What a history does: its memory is not what is measured here.
        """
        with Shards(self.url, NAMESPACE) as shards:
            last = shards.last(0)
        feed = Feed(store)
        await feed.commit("bench", 0, last.offset if last else None)
        while await feed.trim(0):
            pass

    # -- the end ------------------------------------------------------------------------------------------

    def missed(self, hours: int) -> int:
        """
        How many did not run, or ran with another due time than they should, of those due by now.
        """
        end_ms = BEGIN_MS + hours * HOUR_MS
        expected: dict[str, int] = {}
        # A row that was put sooner may be from beyond the end.
        for number in range(self.due_in(hours + 2).stop):
            due_ms = BEGIN_MS + number * DAYS * 24 * HOUR_MS // self.rows
            expected[f"c{number}"] = due_ms
        for id_, due_ms in self.due.items():
            if due_ms is None:
                expected.pop(id_, None)
            else:
                expected[id_] = due_ms
        expected = {id_: due_ms for id_, due_ms in expected.items() if due_ms < end_ms}
        wrong = sum(self.ran.get(id_) != due_ms for id_, due_ms in expected.items())
        return wrong + len(self.ran.keys() - expected.keys())


def live(later: Later, hours: int) -> Iterator[Report]:
    """
    Live through some hours: a pass, which is told, changes on both sides, work until the hour is over.
    """
    for hour in range(hours):
        later.now_ms = BEGIN_MS + hour * HOUR_MS
        yield later.hydrate()
        asyncio.run(later.change(hour))
        if hour % LATE_EVERY == 1 and hour + 1 < hours:
            later.put_late(10)
        later.now_ms += HOUR_MS - 1
        asyncio.run(later.work())
