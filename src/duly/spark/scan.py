"""
The reading half of the format `duly`: jobs as they stand, a bounded page at a time.

A scan is no snapshot: each job is seen as of one moment, while its page is read.  Where all states are
asked for, a job that is there from beginning to end is seen for certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from duly.job import JobState
from duly.spark.pages import INDEX, Part, parts_of, read_part
from duly.spark.rows import row_of
from duly.spark.sending import Loop

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from duly.spark.options import ScanOptions


@dataclass(frozen=True)
class JobPartition(InputPartition):
    """
    What one task reads.
    """

    part: Part


class JobReader(DataSourceReader):
    """
    Jobs of a queue, by state and topic.
    """

    def __init__(self, options: ScanOptions, shards: int) -> None:
        self.options = options
        self.shards = shards
        self.states: set[str] | None = set(options.state) or None
        self.topics: set[str] | None = set(options.topic) or None
        self.due_ms: tuple[float, float] = (float("-inf"), float("inf"))

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """
        Read less where a filter says so.  Spark still applies every filter to what was read.
        """
        for each in filters:
            match each:
                case EqualTo(("state",), str(value)):
                    self.states = _narrow(self.states, {value})
                case In(("state",), values):
                    self.states = _narrow(self.states, set(values))
                case EqualTo(("topic",), str(value)):
                    self.topics = _narrow(self.topics, {value})
                case In(("topic",), values):
                    self.topics = _narrow(self.topics, set(values))
                case GreaterThan(("due_at",), value) | GreaterThanOrEqual(("due_at",), value):
                    self.due_ms = (max(self.due_ms[0], _ms(value)), self.due_ms[1])
                case LessThan(("due_at",), value) | LessThanOrEqual(("due_at",), value):
                    self.due_ms = (self.due_ms[0], min(self.due_ms[1], _ms(value) + 1))
            yield each

    def partitions(self) -> list[InputPartition]:
        """
        Cut the scan into parts: a shard's jobs by score or by slot of its table, ready ones by topic.
        """
        loop = Loop(self.options.url)
        try:
            states = None if self.states is None else {JobState[s] for s in self.states if s in INDEX}
            parts: list[Part] = loop.call(
                parts_of(loop.link, self.options, self.shards, states, self.topics, self.due_ms)
            )
        finally:
            loop.close()
        return [JobPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Read one part.
        """
        # Spark asks for one part also where there is none to read.
        if isinstance(partition, JobPartition):
            make = partial(row_of, max_attempts=self.options.max_attempts)
            yield from read_part(self.options, partition.part, self.topics, make=make)


def _narrow(before: set[str] | None, values: set[str]) -> set[str]:
    return values if before is None else before & values


def _ms(value: datetime) -> float:
    return value.timestamp() * 1000
