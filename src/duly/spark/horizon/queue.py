"""
The queue's side of a pass: what was changed meanwhile, and rows that are moved, from wherever they are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from duly.connection import Link
from duly.errors import UsageError
from duly.job import JobKey
from duly.newjob import Limits
from duly.spark.horizon.rows import order_of
from duly.spark.packing import Packer
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SCAN = 1_000
EXAMPLES = 5
#: What a task tells: how many rows ended with a word, or what was wrong with a row.
TOLD = "word string, rows long, text string"
_TOLD = pa.schema([("word", pa.string()), ("rows", pa.int64()), ("text", pa.string())])


@dataclass(frozen=True, slots=True)
class Queue:
    """
    Which queue, for the driver and for its tasks.
    """

    url: str
    namespace: str = "duly"
    shards: int = 1
    limits: Limits = field(default_factory=Limits)
    now_ms: int | None = None  #: of a test clock

    def store(self) -> Store:
        """
        A store with a connection of its own.
        """
        now_ms = self.now_ms
        clock = None if now_ms is None else lambda: now_ms
        return Store(Link(self.url), namespace=self.namespace, shards=self.shards, now=clock)


async def adopt(store: Store, table: str, *, instead: bool = False) -> None:
    """
    Say to the queue which table its far-future jobs wait in; from then on it takes changes to them.

    Raises:
        UsageError: They wait in another one.
    """
    for keys in store.keys:
        meta = keys.fixed["meta"]
        await store.link.call("HSETNX", meta, "horizon", table)
        standing = (await store.link.call("HGET", meta, "horizon")).decode()
        if standing == table:
            continue
        if not instead:
            raise UsageError(
                f"far-future jobs of namespace {store.namespace} wait in the table with id {standing}, "
                f"and this one is {table}; say --adopt if it takes that one's place"
            )
        await store.link.call("HDEL", meta, "hydrating")
        await store.link.call("UNLINK", keys.fixed["hydrated"])
        await store.link.call("HSET", meta, "horizon", table)


async def changes(store: Store) -> dict[JobKey, bytes]:
    """
    What was asked of jobs that the queue does not know.
    """
    found: dict[JobKey, bytes] = {}
    for keys in store.keys:
        cursor = b"0"
        while True:
            cursor, flat = await store.link.call("HSCAN", keys.fixed["overrides"], cursor, "COUNT", SCAN)
            found.update((JobKey.of(flat[at]), flat[at + 1]) for at in range(0, len(flat), 2))
            if cursor == b"0":
                break
    return found


def due_of(change: bytes) -> int | None:
    """
    The time that a job was rescheduled to, None for another change.
    """
    word, _, due_ms = change.partition(b" ")
    return int(due_ms) if word == b"due" else None


def mover(
    queue: Queue, number: int, *, early: bool = False
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """
    Make the function that `mapInArrow` runs: it moves rows to the queue, and tells what became of them.
    """

    def move(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packer = Packer(limits=queue.limits)
        words: Counter[str] = Counter()
        told: list[dict[str, Any]] = []
        with asyncio.Runner() as runner:
            store = runner.run(_open(queue))
            try:
                for batch in batches:
                    orders = []
                    for row in batch.to_pylist():
                        try:
                            orders.append(order_of(row, packer))
                        except UsageError as error:
                            words["rejected"] += 1
                            if words["rejected"] <= EXAMPLES:
                                told.append({"word": "example", "rows": 0, "text": str(error)})
                    words.update(runner.run(store.thaw(orders, number, early=early)))
                    if early:
                        told += [{"word": "found", "rows": 0, "text": order.key.member} for order in orders]
            finally:
                runner.run(store.link.aclose())
        told += [{"word": word, "rows": rows, "text": None} for word, rows in words.items()]
        yield pa.RecordBatch.from_pylist(told, schema=_TOLD)

    return move


async def _open(queue: Queue) -> Store:
    # A link belongs to the loop that it is made in.
    return queue.store()
