"""
Which rows of the table are to be moved: a predicate, not a window, so that late rows are found, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it

from duly.spark.horizon.rows import STORED
from duly.spark.horizon.table import within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from duly.job import JobKey
    from duly.spark.horizon.table import HorizonTable, Passed

FOREVER_MS = 253_402_300_800_000
IDENTITY = ["topic", "id", "due_ms"]


class Selection:
    """
    The rows of one pass.
    """

    def __init__(
        self, spark: SparkSession, table: HorizonTable, now: DeltaTable, passed: Passed, until_ms: int
    ) -> None:
        self._spark = spark
        self._files = set(now.file_uris())
        # What the last pass saw; nothing, before the first.
        old = set(table.open(passed.version).file_uris()) if passed.number else set()
        self._kept = self._files & old
        self._gone = old - self._files
        self._passed = passed
        self._until_ms = until_ms

    def cold(self) -> DataFrame | None:
        """
        Rows that are due before the end of this pass and that no pass has moved.

        Of files that the last pass saw, those due since its end; of files that it did not see, all, except
        rows that stood in files which are gone since: somebody rewrote the table, and they were moved before.
        """
        passed_ms, until_ms = self._passed.until_ms, self._until_ms
        parts = []
        if kept := within(self._kept, passed_ms, until_ms):
            parts.append(self._read(kept).where(F.col("due_ms") >= passed_ms))
        if fresh := within(self._files - self._kept, 0, until_ms):
            rows = self._read(fresh)
            if gone := within(self._gone, 0, passed_ms):
                moved = self._read(gone).where(F.col("due_ms") < passed_ms).select(*IDENTITY)
                rows = rows.join(moved, on=IDENTITY, how="left_anti")
            parts.append(rows)
        if not parts:
            return None
        found = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        return found.where(F.col("due_ms") < until_ms)

    def named(self, keys: Iterable[JobKey]) -> DataFrame | None:
        """
        Rows of these jobs whose time has not come in this pass.
        """
        wanted = self._spark.createDataFrame([tuple(key) for key in keys], "topic string, id string")
        files = within(self._files, self._until_ms, FOREVER_MS - 1)
        if not files:
            return None
        later = self._read(files).where(F.col("due_ms") >= self._until_ms)
        return later.join(F.broadcast(wanted), on=["topic", "id"], how="left_semi")

    def _read(self, files: list[str]) -> DataFrame:
        return self._spark.read.schema(STORED).parquet(*files)
