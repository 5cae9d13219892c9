"""
Many small files into few, and files that no commit needs any more away.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import CommitProperties

from duly.spark.history.table import HistoryTable

KEEP_HOURS = 7 * 24  #: a reader or a batch under way may need what is younger


@dataclass(frozen=True, slots=True)
class Compacted:
    """
    What an upkeep did.
    """

    files_before: int
    files_after: int
    removed: int  #: files deleted from disk


def compact(path: str, *, keep_hours: int = KEEP_HOURS) -> Compacted:
    """
    Merge the files of each day and topic, and remove those that are older than *keep_hours* and not in use.

    What killed runs have left behind goes, too.

    Raises:
        UsageError: There is no table at *path*.
    """
    history = HistoryTable(path)
    table = history.open()
    before = len(table.file_uris())
    # Commits are deleted some weeks after the next checkpoint, also those of the last batches there were.
    properties = CommitProperties(custom_metadata=dict(history.progress(table).metadata()))
    table.optimize.compact(commit_properties=properties)
    removed = table.vacuum(
        retention_hours=keep_hours,
        dry_run=False,
        enforce_retention_duration=False,
        commit_properties=properties,
        full=True,
    )
    return Compacted(before, len(table.file_uris()), len(removed))
