"""
A connection of SQLite that gives up its locks when it is closed.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress


class SqliteConnection(sqlite3.Connection):
    """
    A connection whose open transaction is rolled back by `close`.

    SQLite itself keeps the transaction, and the one write lock, until the last cursor is freed.  That of a
    statement that was cancelled is held by the traceback of its exception, for as long as anybody keeps that.
    """

    def close(self) -> None:
        """
        Roll back what is not committed, and close.
        """
        with suppress(sqlite3.Error):  # it is closed already, or broken
            if self.in_transaction:
                self.rollback()
        super().close()
