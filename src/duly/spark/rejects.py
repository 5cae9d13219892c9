"""
Rows that were not accepted: set aside with the reason, or the end of the write.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from duly.errors import UsageError
from duly.spark.columns import REJECTS, arrow
from duly.spark.filesystem import filesystem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyarrow import fs

FAIL = "fail"
FILE_ROWS = 10_000


class Rejects:
    """
    Where one task puts them.

    A file is named by what is in it, so that a task that is run again writes the same files.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._rows: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch, reasons: Mapping[int, str], topic: str | None) -> None:
        """
        Set rows of a batch aside, by their numbers.

        Raises:
            UsageError: They are to fail the write.
        """
        for place, reason in reasons.items():
            row = _row(batch.slice(place, 1))
            named = row.get("topic") if row.get("topic") is not None else topic
            if self._where == FAIL:
                raise UsageError(
                    f"row with topic {named!r} and id {row.get('id')!r}: {reason}; mend it, "
                    "or say rejects=PATH to set such rows aside"
                )
            self._rows.append(
                {
                    "topic": None if named is None else str(named),
                    "id": None if row.get("id") is None else str(row["id"]),
                    "reason": reason,
                    "row": msgspec.json.encode(row, enc_hook=str).decode(errors="replace"),
                }
            )
            if len(self._rows) >= FILE_ROWS:
                self.flush()

    def flush(self) -> None:
        """
        Write what is there.
        """
        if not self._rows:
            return
        table = pa.Table.from_pylist(self._rows, arrow(REJECTS))
        name = hashlib.blake2b(msgspec.json.encode(self._rows), digest_size=16).hexdigest()
        system, folder = open_folder(self._where)
        pq.write_table(table, f"{folder}/rejects-{name}.parquet", filesystem=system)
        self._rows = []


def open_folder(where: str) -> tuple[fs.FileSystem, str]:
    """
    The file system behind a path or URI, and the folder in it, made if it is not there.

    Raises:
        UsageError: It cannot be had.
    """
    try:
        system, folder = filesystem(where)
        system.create_dir(folder, recursive=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write rejects to {where}: {error}") from error
    return system, folder


def _row(one: pa.RecordBatch) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, column in zip(one.schema.names, one.columns, strict=True):
        try:
            value = column.to_pylist(maps_as_pydicts="lossy")[0]
        except UnicodeDecodeError:
            value = column.cast(pa.binary())[0].as_py()
        row[name] = _plain(value)
    return row


def _plain(value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
        case _:
            return value
