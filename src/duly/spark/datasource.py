"""
The format `duly`: jobs of a queue as rows, and rows as jobs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from duly.errors import UsageError
from duly.spark.columns import JOBS, check_columns
from duly.spark.options import ScanOptions, WriteOptions, read_options
from duly.spark.scan import JobReader
from duly.spark.shards import open_queue, open_target, recording
from duly.spark.writer import JobStreamWriter, JobWriter

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class DulyDataSource(DataSource):
    """
    ``spark.read.format("duly")``, ``df.write.format("duly")`` and ``df.writeStream.format("duly")``.
    """

    @classmethod
    def name(cls) -> str:
        """
        What users write.
        """
        return "duly"

    def schema(self) -> StructType:
        """
        The columns of a scan.
        """
        return JOBS

    def reader(self, schema: StructType) -> DataSourceReader:
        """
        Read jobs.

        Raises:
            UsageError: An option is wrong, or another schema was asked for.
        """
        if schema != JOBS:
            raise UsageError("the columns of a scan are fixed: leave schema() out and select what you need")
        options = read_options(ScanOptions, self.options)
        return JobReader(options, open_queue(options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  # Spark's signature
        """
        Enqueue rows.

        Raises:
            UsageError: An option or the columns are wrong, or the queue was to be overwritten.
        """
        if overwrite:
            raise UsageError(
                'a queue is not overwritten: say mode("append"), and on_conflict="replace" for its jobs'
            )
        return JobWriter(*self._target(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  # PySpark's words
        """
        Enqueue the rows of each batch of a stream.

        Raises:
            UsageError: An option or the columns are wrong, or the output mode is not "append" or "update".
        """
        if overwrite:
            raise UsageError('a queue takes what is new: say outputMode("append") or outputMode("update")')
        return JobStreamWriter(*self._target(schema))

    def _target(self, schema: StructType) -> tuple[WriteOptions, int]:
        options = read_options(WriteOptions, self.options)
        check_columns(schema, options.topic)
        if options.record:
            options = replace(options, record=recording().absolute(options.record))
        return options, open_target(options)
