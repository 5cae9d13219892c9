"""
Schedule: rows of any frame become jobs, once each, however often it is run.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from duly.durations import parse_duration
from duly.ids import new_id
from duly.settings import Settings
from duly.spark.program import run
from duly.spark.session import use
from duly.spark.trouble import explained
from duly.testrun import TEST_RUN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: By which endings of a path its format is known.
FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc"}


class Report(msgspec.Struct, frozen=True):
    """
    What became of the rows.
    """

    rows: int
    new: int
    kept: int
    replaced: int
    rejected: int
    seconds: float
    run: str
    examples: dict[str, list[str]] = {}  #: some of each kind that is worth a look
    error: str | None = None


def schedule(frame: DataFrame, **options: Any) -> Report:
    """
    Enqueue each row of *frame* and tell what became of them; options are those of the format.

    Raises:
        UsageError: An option, a column or a row is wrong.
        StoreUnavailable, OutcomeUnknown: See `duly.errors`; calling again is safe.
    """
    said = {name: _said(value) for name, value in options.items() if value is not None}
    given = _settled(said.get("url")) | said
    with tempfile.TemporaryDirectory(prefix="duly-") as folder:
        report = Path(given.get("report") or f"{folder}/report.json")
        given |= {"report": str(report), "run": given.get("run") or new_id()}
        with explained():
            use(frame.sparkSession)
            frame.write.format("duly").options(**given).mode("append").save()
        return msgspec.json.decode(report.read_bytes(), type=Report)


def format_of(path: str) -> str:
    """
    The format of a file or folder by its name; Parquet where it does not say.
    """
    return FORMATS.get(Path(path).suffix.lower(), "parquet")


def _settled(url: str | None) -> dict[str, str]:
    """
    What is settled here: Spark's own processes know the environment of their start, and no duly.toml.
    """
    settings = Settings.load()
    if url is None and settings.url is not None:
        TEST_RUN.check(settings)
    found = {
        "url": settings.url,
        "namespace": settings.namespace,
        "record": settings.record_url,
        "record_schema": settings.record_schema,
    }
    return {name: value for name, value in found.items() if value is not None}


def _said(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{parse_duration(value)}ms"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    run("schedule")
