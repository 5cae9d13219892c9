"""
A pass: what is due soon is moved from the table to the queue, and then the table's log says so.

Whatever is killed, the pass is run again: the queue knows what the first attempt moved until the table does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duly.job import JobKey
from duly.namespace import require
from duly.spark.horizon.queue import TOLD, adopt, changes, due_of, mover
from duly.spark.horizon.selecting import Selection
from duly.spark.horizon.table import Passed
from duly.views import Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duly.spark.horizon.queue import Queue
    from duly.spark.horizon.table import HorizonTable

log = logging.getLogger("duly.horizon")

#: A pass that moves nothing is committed only when the window has moved on by this part of it: between two
#: such passes the predicate finds the same nothing again, and the log does not grow.
STEP = 0.25


@dataclass(frozen=True, slots=True)
class Report:
    """
    What a pass did.
    """

    number: int
    until_ms: int  #: everything due before is in the queue now
    moved: int = 0
    kept: int = 0  #: the queue knew them
    cancelled: int = 0  #: while they waited in the table
    rescheduled: int = 0  #: of the moved: to an earlier time, before their own had come
    rejected: int = 0  #: rows that somebody else wrote, and that are no jobs
    seconds: float = 0.0
    examples: tuple[str, ...] = field(default=())  #: of what was rejected


def hydrate(
    spark: SparkSession, table: HorizonTable, queue: Queue, *, window_ms: int, instead: bool = False
) -> Report:
    """
    Move what is due within the window to the queue.

    Raises:
        UsageError: There is no such table, or the queue has another one.
        Overtaken: Another hydrate did the same pass; nothing is lost or doubled by that.
        Conflict: Another hydrate is at a later pass.
    """
    begun_s = time.monotonic()
    identity = str(table.open().metadata().id)
    # Changes first, then the table: a row that was there when it was changed is in what is read below.
    asked, now_ms = asyncio.run(_look(queue, identity, instead=instead))
    snapshot = table.open()
    passed = table.passed(snapshot, queue.namespace)
    until_ms = max(now_ms + window_ms, passed.until_ms)
    next_pass = Passed(passed.number + 1, snapshot.version(), until_ms)
    selection = Selection(spark, table, snapshot, passed, until_ms)

    told = _move(selection.cold(), queue, next_pass.number)
    sooner = {key: due for key, change in asked.items() if (due := due_of(change)) and due < until_ms}
    early = _move(selection.named(sooner), queue, next_pass.number, early=True) if sooner else _Told()
    lost = [(key, asked[key]) for key in sooner if key not in early.found]

    worth = told.words.total() or early.words.total() or until_ms - passed.until_ms >= STEP * window_ms
    if worth:
        table.commit(snapshot, queue.namespace, next_pass)
        # Those that were found by their own time are used up already; the rest waits for nothing.
        asyncio.run(_settle(queue, next_pass.number, lost))
    words = told.words + early.words
    return Report(
        next_pass.number if worth else passed.number,
        until_ms,
        moved=words["created"],
        kept=told.words["kept"] + told.words["moved"],
        cancelled=words["cancelled"],
        rescheduled=early.words["created"],
        rejected=words["rejected"],
        seconds=round(time.monotonic() - begun_s, 3),
        examples=tuple(told.examples + early.examples),
    )


def waiting(spark: SparkSession, table: HorizonTable, queue: Queue, *, window_ms: int) -> int:
    """
    How many rows the next pass would look at.  Changes nothing.
    """
    now_ms = asyncio.run(_now_ms(queue))
    snapshot = table.open()
    passed = table.passed(snapshot, queue.namespace)
    rows = Selection(spark, table, snapshot, passed, max(now_ms + window_ms, passed.until_ms)).cold()
    return 0 if rows is None else rows.count()


@dataclass(slots=True)
class _Told:
    words: Counter[str] = field(default_factory=Counter)
    found: set[JobKey] = field(default_factory=set)
    examples: list[str] = field(default_factory=list)


def _move(rows: DataFrame | None, queue: Queue, number: int, *, early: bool = False) -> _Told:
    told = _Told()
    if rows is None:
        return told
    for row in rows.mapInArrow(mover(queue, number, early=early), TOLD).collect():
        match row.word:
            case "found":
                told.found.add(JobKey.of(row.text))
            case "example":
                told.examples.append(row.text)
            case word:
                told.words[word] += row.rows
    return told


async def _look(queue: Queue, table: str, *, instead: bool) -> tuple[dict[JobKey, bytes], int]:
    store = queue.store()
    try:
        await require(store.link, queue.namespace)
        await adopt(store, table, instead=instead)
        return await changes(store), await Views(store).now_ms()
    finally:
        await store.link.aclose()


async def _now_ms(queue: Queue) -> int:
    store = queue.store()
    try:
        return await Views(store).now_ms()
    finally:
        await store.link.aclose()


async def _settle(queue: Queue, number: int, lost: list[tuple[JobKey, bytes]]) -> None:
    store = queue.store()
    try:
        await store.settle(number, lost)
    finally:
        await store.link.aclose()
