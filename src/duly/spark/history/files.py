"""
Parquet files of events, written where the rows are; the driver only learns their names.
"""

from __future__ import annotations

import json
import time
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from duly.spark.events.schema import ARROW, EVENTS
from duly.spark.events.unpacking import batch_of, entries_of
from duly.spark.filesystem import filesystem
from duly.spark.history.ranges import runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from duly.spark.events.unpacking import Entry
    from duly.spark.history.ranges import Run

DAY_MS = 86_400_000
UNPACK_ROWS = 100_000  #: taken apart at once
FLUSH_ROWS = 500_000  #: what a task holds in memory before it writes
PARTITIONED_BY = ("date", "topic")
#: An event and the day on which it happened, in UTC.
HISTORY_ARROW = ARROW.append(pa.field("date", pa.date32()))
HISTORY = StructType([*EVENTS.fields, StructField("date", DateType())])
#: What a task tells: one row for each file, and one for the entries that it met.
WRITTEN = StructType(
    [
        StructField("path", StringType()),
        StructField("date", StringType()),
        StructField("topic", StringType()),
        StructField("size", LongType()),
        StructField("written_ms", LongType()),
        StructField("stats", StringType()),
        StructField("runs", StringType()),
    ]
)
_WRITTEN_ARROW = pa.schema(
    [(field.name, pa.int64() if isinstance(field.dataType, LongType) else pa.string()) for field in WRITTEN]
)

Committed = dict[tuple[int, str], int]  #: shard and epoch: the last counter that the table holds


def writer(
    table: str, committed: Committed
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """
    Make the function that `mapInArrow` runs: it writes what the table does not hold yet.

    Entries come packed and are taken apart here: the rows themselves never go through the JVM, which takes
    longer for that than all else together.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        runs: dict[tuple[int, str], list[Run]] = {}
        told: list[dict[str, Any]] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            entries = entries_of(batch)
            key = (batch["shard"][0].as_py(), entries[0].offset.epoch)
            runs.setdefault(key, []).extend(runs_of([entry.offset.counter for entry in entries]))
            fresh = [entry for entry in entries if entry.offset.counter > committed.get(key, 0)]
            for part in _parts(fresh):
                held.append(batch_of(key[0], part))
                if sum(each.num_rows for each in held) >= FLUSH_ROWS:
                    told += _write(table, held)
                    held = []
        if held:
            told += _write(table, held)
        told += [{"runs": json.dumps([shard, epoch, found])} for (shard, epoch), found in runs.items()]
        if told:
            yield pa.RecordBatch.from_pylist(told, schema=_WRITTEN_ARROW)

    return write


def _parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    """
    Some entries at a time: one may hold hundreds of rows.
    """
    part, rows = [], 0
    for entry in entries:
        part.append(entry)
        rows += entry.rows
        if rows >= UNPACK_ROWS:
            yield part
            part, rows = [], 0
    if part:
        yield part


def _write(table: str, batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    fs, root = filesystem(table)
    told = []
    for day, topic, rows in _split(pa.Table.from_batches(batches)):
        date = str(np.datetime64(int(day), "D"))
        folder = f"date={date}/topic={topic}"
        path = f"{folder}/part-{uuid.uuid4()}.parquet"
        fs.create_dir(f"{root}/{folder}", recursive=True)
        with fs.open_output_stream(f"{root}/{path}") as out:
            pq.write_table(rows.drop_columns(["topic"]), out, compression="zstd", compression_level=1)
        told.append(
            {
                "path": path,
                "date": date,
                "topic": topic,
                "size": fs.get_file_info(f"{root}/{path}").size,
                "written_ms": time.time_ns() // 1_000_000,
                "stats": json.dumps(_stats(rows)),
            }
        )
    return told


def _split(rows: pa.Table) -> Iterator[tuple[int, str, pa.Table]]:
    """
    Yield the rows of each day and topic, in their order.
    """
    days = rows["at_ms"].to_numpy() // DAY_MS
    encoded = rows["topic"].combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    keys = days * len(names) + encoded.indices.to_numpy()
    if keys.min() == keys.max():
        yield days[0], names[0], rows
        return
    order = np.argsort(keys, kind="stable")
    rows, keys = rows.take(pa.array(order)), keys[order]
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    for begin, end in pairwise(cuts):
        yield keys[begin] // len(names), names[keys[begin] % len(names)], rows.slice(begin, end - begin)


def _stats(rows: pa.Table) -> dict[str, Any]:
    """
    What lets readers of the table skip a file.
    """
    bounds = {name: pc.min_max(rows[name]).as_py() for name in ("shard", "counter", "at_ms", "due_ms")}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: bound["min"] for name, bound in bounds.items()},
        "maxValues": {name: bound["max"] for name, bound in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }
