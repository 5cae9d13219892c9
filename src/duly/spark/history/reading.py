"""
The history as a DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow.fs import FileType

from duly.errors import UsageError
from duly.spark.filesystem import filesystem
from duly.spark.history.files import HISTORY
from duly.spark.history.table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duly.spark.history.ranges import Gap


def read_history(spark: SparkSession, path: str) -> DataFrame:
    """
    Read the events of a history, kept as a Delta table or as plain Parquet.

    Spark needs no further package for it: the table says which files are its own.

    Raises:
        UsageError: There is no history at *path*.
    """
    table = HistoryTable(path)
    if table.exists():
        found = table.open()
        files = found.file_uris()
        if not files:
            return spark.createDataFrame([], HISTORY)
        # Both as the table spells them: a path of the user's may lead there by a link.
        return spark.read.schema(HISTORY).option("basePath", found.table_uri).parquet(*files)
    if is_parquet(path):
        return spark.read.schema(HISTORY).parquet(path)
    raise UsageError(
        f"there is no history at {path}: write one by duly pipeline history --once --table {path}"
    )


def is_parquet(path: str) -> bool:
    """
    Whether Spark's own sink wrote files there.
    """
    fs, root = filesystem(path)
    return fs.get_file_info(f"{root}/_spark_metadata").type is FileType.Directory


def read_gaps(path: str) -> list[Gap]:
    """
    What a history says that it does not hold.
    """
    table = HistoryTable(path)
    return list(table.progress().gaps) if table.exists() else []
