"""
The data source `duly.events`: ``spark.readStream.format("duly.events")``.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from duly.errors import UsageError
from duly.events import Offset
from duly.feed import EventsLost
from duly.spark.events.places import (
    ROLLED_BACK,
    TRIMMED,
    next_place,
    read_places,
    slices,
    write_places,
)
from duly.spark.events.schema import EVENTS, PACKED
from duly.spark.events.shards import PAGE_ROWS, Shards
from duly.spark.events.unpacking import batch_of, packed_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from duly.spark.events.unpacking import Entry

log = logging.getLogger("duly.spark")

SLICE_ROWS = 50_000  #: below that, a task of its own costs more than it brings


@dataclass(frozen=True, slots=True)
class EventOptions:
    """
    What ``option(…)`` may say.
    """

    url: str  #: of the server
    namespace: str = "duly"
    max_rows: int = 1_000_000  #: of one batch, over all shards
    slices: int = 8  #: tasks that read one shard, at most
    fail_on_data_loss: bool = True
    packed: bool = False  #: a row for each entry, as the server keeps it
    starting: str = ""  #: offsets as JSON, for who knows better than a checkpoint where to begin

    @classmethod
    def of(cls, options: Mapping[str, str]) -> EventOptions:
        """
        Read the options of a stream.

        Raises:
            UsageError: One is missing, unknown or wrong.
        """
        given = {name.lower(): value for name, value in options.items()}
        known = {
            "url": "url",
            "namespace": "namespace",
            "maxrows": "max_rows",
            "slices": "slices",
            "failondataloss": "fail_on_data_loss",
            "packed": "packed",
            "startingoffsets": "starting",
        }
        for name in given.keys() - known.keys():
            raise UsageError(
                f"duly.events has no option {name!r}; known are url, namespace, maxRows, slices, "
                "failOnDataLoss, packed, startingOffsets"
            )
        if not given.get("url"):
            raise UsageError(
                "duly.events needs the option url: the address of the server, redis://host:6379/0"
            )
        values: dict[str, Any] = {known[name]: value for name, value in given.items()}
        for name in ("max_rows", "slices"):
            if name in values:
                values[name] = _number(name, values[name])
        for name, said in (("fail_on_data_loss", "failOnDataLoss"), ("packed", "packed")):
            if name in values:
                values[name] = _truth(said, values[name])
        return cls(**values)


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name} takes a whole number from 1 on, not {text!r}")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


class Events(DataSource):
    """
    Rows of what happened, see `schema.EVENTS`.
    """

    @classmethod
    def name(cls) -> str:
        """
        What ``format(…)`` takes.
        """
        return "duly.events"

    def schema(self) -> StructType:
        """
        The fields of an event, or the parts of an entry.
        """
        return PACKED if EventOptions.of(self.options).packed else EVENTS

    def streamReader(self, schema: StructType) -> EventsReader:  # noqa: ARG002, N802  # PySpark's names
        """
        A reader of all shards.
        """
        return EventsReader(EventOptions.of(self.options))


@dataclass(frozen=True)
class Slice(InputPartition):
    """
    Entries of one shard by their counters: the same ones whenever it is read.
    """

    shard: int
    epoch: str
    first: int
    last: int
    nonce: str  #: of the last entry, where it is known


class EventsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Decides ranges on the driver, reads them wherever Spark says.
    """

    def __init__(self, options: EventOptions) -> None:
        self._options = options
        self._batch_of = packed_of if options.packed else batch_of
        self._target: dict[int, Entry | None] | None = None

    def _shards(self) -> Shards:
        return Shards(self._options.url, self._options.namespace)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # PySpark's name
        """
        Nothing was read, or what the options say: the same answer however often it is asked.
        """
        return json.loads(self._options.starting) if self._options.starting else {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # PySpark's name
        """
        How much one batch may bring.
        """
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # PySpark's name
        """
        Remember where the streams end now.
        """
        with self._shards() as shards:
            self._target = {shard: shards.last(shard) for shard in range(shards.count())}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # PySpark's
        """
        Decide where the next batch ends.

        Raises:
            EventsLost: There is a gap behind *start*, and the options forbid to skip it.
        """
        options, places = self._options, read_places(start)
        with self._shards() as shards:
            count = shards.count()
            max_rows = None if isinstance(limit, ReadAllAvailable) else limit.max_rows  # type: ignore[attr-defined]  # the only other limit
            share = max_rows and max(1, max_rows // count)
            for shard in range(count):
                last = self._target[shard] if self._target is not None else shards.last(shard)
                place = next_place(
                    shards, shard, places.get(shard), last, share, strict=options.fail_on_data_loss
                )
                if place is not None:
                    if place.lost and place != places.get(shard):
                        log.warning("%s; going on behind them", place.lost)
                    places[shard] = place
        return write_places(places)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """
        Cut what lies between into ranges for tasks.
        """
        before, found = read_places(start), []
        for shard, place in read_places(end).items():
            known = before.get(shard)
            if place == known:
                continue
            after = place.after if place.after is not None else known.counter if known else 0
            rows = place.rows - known.rows if known and place.after is None else place.rows
            count = min(self._options.slices, max(1, rows // SLICE_ROWS))
            for first, last in slices(after, place.counter, count):
                nonce = place.nonce if last == place.counter else ""
                found.append(Slice(shard, place.epoch, first, last, nonce))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the events of one range, some thousand at a time.

        Raises:
            EventsLost: Some are not there any more, and the options forbid to skip them.
        """
        part: Any = partition
        expected, kept, rows = part.first, [], 0
        with self._shards() as shards:
            for page in shards.pages(part.shard, part.first, part.last):
                for entry in page:
                    if not self._fits(part, expected, entry):
                        return
                    expected = entry.offset.counter + 1
                kept += page
                rows += sum(entry.rows for entry in page)
                if rows >= PAGE_ROWS:
                    yield self._batch_of(part.shard, kept)
                    kept, rows = [], 0
        if expected <= part.last:
            self._tell(EventsLost(part.shard, _before(part, expected), part.last + 1, TRIMMED))
        if kept:
            yield self._batch_of(part.shard, kept)

    def _fits(self, part: Slice, expected: int, entry: Entry) -> bool:
        """
        Compare an entry with what must come next: a hole can be skipped, another past cannot be read.
        """
        epoch, counter, nonce = entry.offset
        if epoch != part.epoch or (counter == part.last and part.nonce not in ("", nonce)):
            self._tell(EventsLost(part.shard, _before(part, expected), None, ROLLED_BACK))
            return False
        if counter != expected:
            self._tell(EventsLost(part.shard, _before(part, expected), counter, TRIMMED))
        return True

    def _tell(self, lost: EventsLost) -> None:
        if self._options.fail_on_data_loss:
            raise lost
        log.warning("%s; going on behind them", lost)


def _before(part: Slice, expected: int) -> Offset:
    return Offset(part.epoch, expected - 1, "")
