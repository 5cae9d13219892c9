"""
The Delta table of the history: its commits say how far it came, so that nothing else has to be believed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from duly.errors import DulyError, UsageError
from duly.spark.events.places import read_places, write_places
from duly.spark.history.files import HISTORY_ARROW, PARTITIONED_BY
from duly.spark.history.ranges import Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row

    from duly.spark.events.places import Places
    from duly.spark.history.files import Committed

#: Keys of what a commit says beside the rows.
OFFSETS, GAPS, NAMESPACE = "duly.offsets", "duly.gaps", "duly.namespace"


class Overtaken(DulyError):
    """
    Another history pipeline wrote the same events to the same table first.
    """


@dataclass(frozen=True, slots=True)
class Progress:
    """
    How far the table came.
    """

    namespace: str
    places: Places = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    def metadata(self) -> dict[str, str]:
        """
        As a commit carries it: all of it in each commit, so that old commits can go.
        """
        return {
            OFFSETS: json.dumps(write_places(self.places)),
            GAPS: json.dumps([asdict(gap) for gap in self.gaps]),
            NAMESPACE: self.namespace,
        }


class HistoryTable:
    """
    One table for one namespace.

    The counter up to which the table holds a shard and epoch is the version of a Delta transaction of that
    name.  Two writers of the same events collide there, and one of them fails.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        """
        Whether somebody has made it.
        """
        return DeltaTable.is_deltatable(self.path)

    def open(self) -> DeltaTable:
        """
        The table as it is now.

        Raises:
            UsageError: There is none.
        """
        try:
            return DeltaTable(self.path)
        except DeltaError as error:
            raise UsageError(
                f"there is no history table at {self.path}: write one by duly pipeline history --table "
                f"{self.path}"
            ) from error

    def create(self, namespace: str) -> Progress:
        """
        Make the table if it is not there, and say how far it came.

        Raises:
            UsageError: What is there is another table, or the history of another namespace.
        """
        try:
            DeltaTable.create(
                self.path,
                HISTORY_ARROW,
                mode="ignore",
                partition_by=list(PARTITIONED_BY),
                name="duly history",
            )
        except (DeltaError, OSError) as error:
            raise UsageError(f"cannot make a table at {self.path}: {error}") from error
        table = self.open()
        columns = set(pa.schema(table.schema().to_arrow()).names)
        if not set(HISTORY_ARROW.names) <= columns:
            raise UsageError(f"the table at {self.path} is no history of events; choose another path")
        found = self.progress(table)
        if found.namespace and found.namespace != namespace:
            raise UsageError(
                f"the table at {self.path} is the history of namespace {found.namespace!r}, "
                f"not of {namespace!r}"
            )
        return Progress(namespace, found.places, found.gaps)

    def progress(self, table: DeltaTable | None = None) -> Progress:
        """
        What the newest batch said.

        A compaction repeats what was so when it began, and batches come meanwhile: it is believed only where
        the commits of all batches are gone.
        """
        told = [commit for commit in (table or self.open()).history() if OFFSETS in commit]
        if not told:
            return Progress("")
        newest = next((commit for commit in told if commit["operation"] == "WRITE"), told[0])
        gaps = tuple(Gap(**gap) for gap in json.loads(newest[GAPS]))
        return Progress(newest[NAMESPACE], read_places(json.loads(newest[OFFSETS])), gaps)

    def committed(self, table: DeltaTable, namespace: str, places: Places) -> Committed:
        """
        The last counter that the table holds, of each shard and epoch that *places* name.
        """
        found = {}
        for shard, place in places.items():
            counter = table.transaction_version(_app(namespace, shard, place.epoch))
            if counter is not None:
                found[shard, place.epoch] = counter
        return found

    def append(self, table: DeltaTable, files: Sequence[Row], progress: Progress) -> None:
        """
        Add files and say how far the table came, in one commit.

        Raises:
            Overtaken: Another writer was first.
        """
        actions: list[Any] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values={"date": file.date, "topic": file.topic},
                modification_time=file.written_ms,
                data_change=True,
                stats=file.stats,
            )
            for file in files
        ]
        transactions = [
            Transaction(_app(progress.namespace, shard, place.epoch), place.counter)
            for shard, place in progress.places.items()
        ]
        try:
            table.create_write_transaction(
                actions,
                "append",
                HISTORY_ARROW,
                list(PARTITIONED_BY),
                commit_properties=CommitProperties(
                    custom_metadata=progress.metadata(), app_transactions=transactions
                ),
            )
        except CommitFailedError as error:
            raise Overtaken(
                f"another history pipeline writes to {self.path} as well ({error}); let one of them go on"
            ) from error


def _app(namespace: str, shard: int, epoch: str) -> str:
    return f"duly/{namespace}/{shard}/{epoch}"
