"""
Effects of handlers: rows of a table of our own, beside those of the record.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from duly.record.database import sync_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

ADD = text("INSERT INTO effects (job, attempt) VALUES (:job, :attempt)")


class Effects:
    """
    The table, seen through a connection of its own.
    """

    def __init__(self, url: str) -> None:
        self._engine = sync_engine(url)

    def execute(self, words: str, **values: Any) -> Any:
        """
        Execute one statement, commit, and return the rows, if there are any.
        """
        # A reader does not wait for the one writer of SQLite.
        reads = words.startswith("SELECT")
        with self._engine.execution_options(duly_reads=reads).begin() as connection:
            done = connection.execute(text(words), values)
            return done.all() if done.returns_rows else None

    def all(self) -> list[tuple[str, int]]:
        """
        Return job and attempt of each effect.
        """
        return sorted((row.job, row.attempt) for row in self.execute("SELECT job, attempt FROM effects"))

    def row(self, id_: str = "a") -> Any:
        """
        Return the row of a job.
        """
        return self.execute("SELECT * FROM duly_jobs WHERE id = :id", id=id_)[0]

    def runs(self, id_: str = "a") -> list[str]:
        """
        Return what became of the runs of a job.
        """
        found = self.execute("SELECT word FROM duly_attempts WHERE id = :id ORDER BY token", id=id_)
        return [row.word for row in found]


@contextmanager
def effects_in(url: str) -> Iterator[Effects]:
    """
    Make the table, and remove it: some databases are used again by the next test.
    """
    effects = Effects(url)
    effects.execute("CREATE TABLE effects (job VARCHAR(100) NOT NULL, attempt INTEGER NOT NULL)")
    try:
        yield effects
    finally:
        effects.execute("DROP TABLE effects")
        effects._engine.dispose()
