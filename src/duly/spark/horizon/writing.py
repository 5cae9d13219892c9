"""
Jobs into the table: files are written where the rows are, and appear all at once or not at all.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it

from duly.errors import UsageError
from duly.newjob import Limits
from duly.spark.columns import check_columns
from duly.spark.filesystem import filesystem
from duly.spark.horizon.rows import PARTITION, ROWS, row_of
from duly.spark.horizon.table import HorizonTable
from duly.spark.packing import Packer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

FILE_ROWS = 500_000
#: What a task tells: one row for each file that it wrote, or what was wrong with the first bad row.
WRITTEN = "path string, day string, size long, written_ms long, stats string, rows long, error string"
_WRITTEN = pa.schema(
    [
        ("path", pa.string()),
        ("day", pa.string()),
        ("size", pa.int64()),
        ("written_ms", pa.int64()),
        ("stats", pa.string()),
        ("rows", pa.int64()),
        ("error", pa.string()),
    ]
)


def put_off(frame: DataFrame, table: str, *, topic: str | None = None, limits: Limits | None = None) -> int:
    """
    Let jobs wait in a Delta table until they are nearly due; how many.

    Columns are those of a write to the queue: `duly.spark.columns.WRITTEN`.

    Raises:
        UsageError: A column is missing or is none of a job's, or a row is wrong; then nothing was written.
    """
    check_columns(frame.schema, topic)
    found = HorizonTable(table)
    found.create()
    # All rows of a day go to one task and are in order there: few files, of which a pass opens little.
    near = frame.repartition(F.col("due_at").try_cast("date")).sortWithinPartitions("due_at")
    told = near.mapInArrow(_writer(found.path, Packer(topic, limits=limits or Limits())), WRITTEN).collect()
    for row in told:
        if row.error:
            raise UsageError(row.error)
    if told:
        found.append([row.asDict() for row in told])
    return sum(row.rows for row in told)


def _writer(table: str, packer: Packer) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: dict[str, list[dict[str, Any]]] = {}
        told: list[dict[str, Any]] = []
        for batch in batches:
            for given in batch.to_pylist(maps_as_pydicts="strict"):
                try:
                    row = row_of(given, packer)
                except UsageError as error:
                    wrong = f"row with id {given.get('id')!r}: {error}"
                    yield pa.RecordBatch.from_pylist([{"error": wrong}], schema=_WRITTEN)
                    return
                rows = waiting.setdefault(row[PARTITION], [])
                rows.append(row)
                if len(rows) >= FILE_ROWS:
                    told.append(_write(table, row[PARTITION], waiting.pop(row[PARTITION])))
        told += [_write(table, day, rows) for day, rows in waiting.items()]
        yield pa.RecordBatch.from_pylist(told, schema=_WRITTEN)

    return write


def _write(table: str, day: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    fs, root = filesystem(table)
    folder = f"{PARTITION}={day}"
    path = f"{folder}/part-{uuid.uuid4()}.parquet"
    fs.create_dir(f"{root}/{folder}", recursive=True)
    found = pa.Table.from_pylist(rows, ROWS).drop_columns([PARTITION])
    with fs.open_output_stream(f"{root}/{path}") as out:
        pq.write_table(found, out, compression="zstd", compression_level=1, row_group_size=50_000)
    bounds = pc.min_max(found["due_ms"]).as_py()
    return {
        "path": path,
        "day": day,
        "size": fs.get_file_info(f"{root}/{path}").size,
        "written_ms": time.time_ns() // 1_000_000,
        "stats": json.dumps(
            {
                "numRecords": len(rows),
                "minValues": {"due_ms": bounds["min"]},
                "maxValues": {"due_ms": bounds["max"]},
                "nullCount": {"due_ms": 0},
            }
        ),
        "rows": len(rows),
        "error": None,
    }
