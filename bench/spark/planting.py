"""
A record, a queue and a history that agree but for what is planted: so many differences of each kind.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake
from sqlalchemy import text

from duly.job import JobKey, Order
from duly.record.rules import Difference
from duly.spark.history.files import HISTORY_ARROW, PARTITIONED_BY
from duly.spark.reconcile.pipeline import DUPLICATE, OVER
from duly.store import Promise, Want

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duly.record.assembly import WholeRecord

#: What the first rows are, in blocks of the same size; the file of SQL beside this one counts on their order.
KINDS = (
    *(Difference.missing, Difference.behind, Difference.finished, Difference.due, Difference.payload),
    *(Difference.unrecorded, Difference.ahead, OVER),
)
REVISION = 1_700_000_000_000_000
HOUR_MS = 3_600_000
AT_ONCE = 50_000


class Planted:
    """
    What is planted: *rows* of a record, about as many jobs of a queue, and *each* of every kind.
    """

    def __init__(self, record: WholeRecord, rows: int, each: int) -> None:
        self._record = record
        self._rows = rows
        self._each = each
        self._now_ms = time.time_ns() // 1_000_000

    @property
    def expected(self) -> dict[str, int]:
        """
        What a comparison has to find.
        """
        return {str(kind): self._each for kind in (*KINDS, Difference.orphan, DUPLICATE)}

    async def plant(self, table: str) -> None:
        """
        Fill the record, the queue, and a history at *table*.
        """
        record, store = self._record, self._record.store
        statement = text((Path(__file__).with_suffix(".sql")).read_text("utf-8"))
        values = {
            "namespace": store.namespace,
            "rows": self._rows,
            "planted": self._each,
            "revision": REVISION,
            "generation": record.guard.generation,
            "due_ms": self._now_ms + HOUR_MS,
            "past_ms": self._now_ms - 1_000,
        }
        async with record.database.engine.begin() as connection:
            await connection.execute(statement, values)
        promises = self._promises()
        while some := list(itertools.islice(promises, AT_ONCE)):
            await store.hydrate(some, generation=record.guard.generation)
        await store.enqueue_many(self._order(f"orphan-{n}", n) for n in range(self._each))
        await self._run_some()
        await self._settle()
        write_deltalake(table, pa.table(self._history(), HISTORY_ARROW), partition_by=list(PARTITIONED_BY))

    async def _settle(self) -> None:
        """
        Have database and server do now what they do after a great change, so that it is not measured.
        """
        async with self._record.database.engine.connect() as connection:
            alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await alone.execute(text("VACUUM ANALYZE duly_jobs"))
            await alone.execute(text("CHECKPOINT"))
        rewriting = b"aof_rewrite_in_progress:1"
        while rewriting in await self._record.store.link.call("INFO", "persistence"):  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.2)

    async def _run_some(self) -> None:
        store, number = self._record.store, itertools.count(1)
        while True:
            wants = [Want("now", 500, HOUR_MS)]
            claimed = await store.claim(0, wants, worker="planter", number=next(number), limit=500)
            if not claimed.leases:
                return
            await asyncio.gather(*(store.ack(lease, b'"done"', lateness_ms=0) for lease in claimed.leases))

    def _promises(self) -> Iterator[Promise]:
        absent = {KINDS.index(Difference.missing), KINDS.index(OVER)}
        for n in range(self._rows):
            block = n // self._each
            if block in absent:
                continue
            revision = REVISION + (5 if block == KINDS.index(Difference.ahead) else 0)
            topic = "now" if block == KINDS.index(Difference.unrecorded) else "reminder"
            yield Promise(self._order(f"customer-{n}", n, topic), revision, b"reques")

    def _order(self, id_: str, n: int, topic: str = "reminder") -> Order:
        payload = b'{"customer":%d,"template":"reminder","locale":"de","text":"Please remember this"}' % n
        due_ms = self._now_ms - 1_000 if topic == "now" else self._now_ms + HOUR_MS + 7 * n
        return Order(JobKey(topic, id_), payload, due_ms=due_ms)

    def _history(self) -> dict[str, list[Any]]:
        """
        Of some that the queue forgot, that they ended; and of others, that they did so twice.
        """
        first = KINDS.index(OVER) * self._each
        told = [(f"customer-{n}", REVISION, "acked") for n in range(first, first + self._each)]
        told += [(f"twice-{n}", 1, verb) for n in range(self._each) for verb in ("acked", "buried")]
        states = {"acked": "succeeded", "buried": "dead"}
        columns: dict[str, list[Any]] = {name: [] for name in HISTORY_ARROW.names}
        for counter, (id_, revision, verb) in enumerate(told, 1):
            fields = {
                "shard": 0,
                "epoch": "planted",
                "counter": counter,
                "row": 0,
                "at_ms": self._now_ms,
                "verb": verb,
                "topic": "reminder",
                "id": id_,
                "revision": revision,
                "state": states[verb],
                "priority": "normal",
                "attempt": 1,
                "crashes": 0,
                "due_ms": self._now_ms,
                "run_ms": 5,
                "lateness_ms": 0,
                "worker": "w",
                "reason": "",
                "date": datetime.fromtimestamp(self._now_ms / 1000, UTC).date(),
            }
            for name, values in columns.items():
                values.append(fields[name])
        return columns
