"""
The formats `duly.record` and `duly.digests`: rows of a record, and jobs of a queue as they are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from duly.errors import UsageError
from duly.record.ranges import KeyRange, key_ranges, read_range
from duly.record.schema import reached
from duly.record.target import Target
from duly.settings import Settings
from duly.spark.columns import arrow
from duly.spark.options import ScanOptions, read_options
from duly.spark.pages import read_part
from duly.spark.reconcile.sides import PROMISED, QUEUED, promised_row, queued_row
from duly.spark.rows import arrays_of
from duly.spark.scan import JobPartition, JobReader
from duly.spark.shards import open_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

SPLIT = 50_000  #: rows that are worth a task
_OPTIONS = ("record", "record_schema", "namespace")


class Digests(DataSource):
    """
    ``spark.read.format("duly.digests")``: what a comparison needs of each job of a queue.
    """

    @classmethod
    def name(cls) -> str:
        """
        What is said to Spark.
        """
        return "duly.digests"

    def schema(self) -> StructType:
        """
        Its columns.
        """
        return QUEUED

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        """
        Read jobs; options are those of a scan.

        Raises:
            UsageError: An option is wrong.
        """
        options = read_options(ScanOptions, self.options)
        return DigestReader(options, open_queue(options))


class DigestReader(JobReader):
    """
    A scan with other rows.
    """

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Read one part.
        """
        if isinstance(partition, JobPartition):
            yield from read_part(self.options, partition.part, self.topics, QUEUED, queued_row)


class RecordRows(DataSource):
    """
    ``spark.read.format("duly.record")``: what a record says of each job.
    """

    @classmethod
    def name(cls) -> str:
        """
        What is said to Spark.
        """
        return "duly.record"

    def schema(self) -> StructType:
        """
        Its columns.
        """
        return PROMISED

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        """
        Read rows.

        Raises:
            UsageError: An option is unknown, or there is no record.
        """
        return RecordReader(*_record(self.options))


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """
    What one task reads.
    """

    ranges: tuple[KeyRange, ...]


class RecordReader(DataSourceReader):
    """
    Rows of a record, in ranges of their keys.
    """

    def __init__(self, target: Target, namespace: str) -> None:
        self.target = target
        self.namespace = namespace

    def partitions(self) -> list[InputPartition]:
        """
        Cut them.
        """
        with (
            reached(self.target) as engine,
            engine.connect().execution_options(duly_reads=True) as connection,
        ):
            parts = key_ranges(connection, self.namespace, SPLIT)
        return [RangePartition(tuple(part)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Read one part.
        """
        # Spark asks for one part also where there is none to read.
        if not isinstance(partition, RangePartition):
            return
        schema = arrow(PROMISED)
        with reached(self.target) as engine:
            for each in partition.ranges:
                for rows in read_range(engine, self.namespace, each, promised_row):
                    yield pa.RecordBatch.from_arrays(arrays_of(rows, schema), schema=schema)


def _record(given: Mapping[str, str]) -> tuple[Target, str]:
    for name in given:
        if name.lower() not in _OPTIONS:
            raise UsageError(f"unknown option {name}; known are {', '.join(_OPTIONS)}")
    values = {name.lower(): value for name, value in given.items()}
    settings = Settings.load(
        record=values.get("record"),
        record_schema=values.get("record_schema"),
        namespace=values.get("namespace"),
    )
    if settings.record is None:
        raise UsageError('say which record: option("record", "postgresql://…"), or DULY_RECORD')
    return Target.of(settings), settings.namespace
