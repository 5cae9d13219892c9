"""
The Delta table of far-future jobs.  Its log also says how far it was moved to the queue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from duly.errors import DulyError, UsageError
from duly.spark.horizon.rows import ADDED, PARTITION, ROWS, day_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DAY = re.compile(rf"/{PARTITION}=(\d{{4}}-\d{{2}}-\d{{2}})/")


class Overtaken(DulyError):
    """
    Another hydrate committed the same pass first; nothing is lost or doubled by that.
    """


@dataclass(frozen=True, slots=True)
class Passed:
    """
    How far the table was moved: of the rows that it held at *version*, those due before *until_ms*.
    """

    number: int = 0  #: of the last pass that was committed
    version: int = -1
    until_ms: int = 0


class HorizonTable:
    """
    One table, for one namespace.
    """

    def __init__(self, path: str) -> None:
        # Tasks need not run where the driver was started.
        self.path = path if "://" in path else str(Path(path).absolute())

    def create(self) -> None:
        """
        Make the table if it is not there, and give one of an earlier release the columns that it lacks.

        Raises:
            UsageError: It cannot be made, or what is there is another table.
        """
        try:
            DeltaTable.create(self.path, ROWS, mode="ignore", partition_by=[PARTITION], name="duly horizon")
        except (DeltaError, OSError) as error:
            raise UsageError(f"cannot make a table at {self.path}: {error}") from error
        table = self.open()
        if lacking := _lacking(table):
            try:
                table.alter.add_columns(Schema.from_arrow(pa.schema(map(ROWS.field, lacking))).fields)
            except CommitFailedError as error:
                if _lacking(self.open()):
                    raise UsageError(f"somebody else changes the table at {self.path}; try again") from error

    def open(self, version: int | None = None) -> DeltaTable:
        """
        The table as it is now, or was.

        Raises:
            UsageError: There is none, it is another one, or that version is gone.
        """
        try:
            table = DeltaTable(self.path, version=version)
        except DeltaError as error:
            if version is None:
                raise UsageError(
                    f"there is no table of far-future jobs at {self.path}; "
                    "duly.spark.horizon.put_off writes one"
                ) from error
            raise UsageError(
                f"the log of {self.path} does not reach back to version {version}, as of the last pass: "
                "keep it for longer than the time between two passes (delta.logRetentionDuration)"
            ) from error
        missing = set(_lacking(table, ROWS.names)).difference(ADDED)
        if missing:
            raise UsageError(
                f"the table at {self.path} is none of far-future jobs: it has no {', '.join(sorted(missing))}"
            )
        return table

    def append(self, files: Iterable[Mapping[str, Any]]) -> None:
        """
        Add files that were written, all in one commit.
        """
        actions: list[Any] = [
            AddAction(
                path=file["path"],
                size=file["size"],
                partition_values={PARTITION: file["day"]},
                modification_time=file["written_ms"],
                data_change=True,
                stats=file["stats"],
            )
            for file in files
        ]
        table = self.open()
        table.create_write_transaction(actions, "append", table.schema(), [PARTITION])

    def passed(self, table: DeltaTable, namespace: str) -> Passed:
        """
        What the newest pass that was committed says.
        """
        found = [table.transaction_version(app) for app in _apps(namespace)]
        number, version, until_ms = found
        return Passed() if number is None else Passed(number, version or 0, until_ms or 0)

    def commit(self, table: DeltaTable, namespace: str, passed: Passed) -> None:
        """
        Say in the log that a pass is done.

        Raises:
            Overtaken: Another hydrate did, first.
        """
        values = (passed.number, passed.version, passed.until_ms)
        transactions = [Transaction(app, value) for app, value in zip(_apps(namespace), values, strict=True)]
        try:
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                [PARTITION],
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise Overtaken(f"another hydrate moves jobs from {self.path} as well: {error}") from error


def within(files: Iterable[str], from_ms: int, until_ms: int) -> list[str]:
    """
    The files that may hold rows due from *from_ms* and before *until_ms*, by the days in their names.
    """
    first, last = day_of(max(from_ms, 0)), day_of(until_ms)
    found = []
    for file in files:
        day = _DAY.search(file)
        # Who writes without partitions has all days in one file.
        if day is None or first <= day[1] <= last:
            found.append(file)
    return sorted(found)


def _lacking(table: DeltaTable, names: Iterable[str] = ADDED) -> list[str]:
    found = {field.name for field in table.schema().fields}
    return [name for name in names if name not in found]


def _apps(namespace: str) -> tuple[str, str, str]:
    begin = f"duly/{namespace}/hydrate"
    return f"{begin}/pass", f"{begin}/version", f"{begin}/until_ms"
