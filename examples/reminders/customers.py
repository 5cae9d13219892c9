"""
The customers: a table of the shop's own, in SQLite or PostgreSQL, that knows nothing of jobs.
"""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

TABLE = """
CREATE TABLE reminder_customers (customer INTEGER PRIMARY KEY, name TEXT NOT NULL, ends_ms BIGINT NOT NULL)
"""
INSERT = {
    "sqlite": "INSERT INTO reminder_customers VALUES (?, ?, ?)",
    "postgresql": "INSERT INTO reminder_customers VALUES (%s, %s, %s)",
}
COLUMNS = "customer bigint, name string, ends_ms bigint"  #: as Spark sees them
AHEAD = timedelta(days=30)  #: when the first reminder of a subscription is due, before its end
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
SOON = 25  #: the first reminder of one customer in so many is due within seconds


class Customers:
    """
    Those who have a subscription, and when it ends.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("sqlite:///", "postgresql://")):
            raise SystemExit(f"--database {url}: say sqlite:///FILE or postgresql://USER@HOST/NAME")
        self.url = url

    def create(self, count: int, begin: datetime, within_s: float) -> None:
        """
        Make the table: some have to be reminded within *within_s*, the others over the next two months.
        """
        first_ms = round((begin + AHEAD).timestamp() * 1000)
        midnight_ms = first_ms // DAY_MS * DAY_MS
        rows = []
        for customer in range(count):
            chance = random.Random(customer)  # the same customers each time
            ends_ms = first_ms + int(within_s * 1000 * customer / count)
            if customer % SOON:
                # By day rather than by night; what that puts into the past belongs to the end.
                ends_ms = midnight_ms + int(DAY_MS * (chance.randrange(60) + chance.triangular(0, 1, 0.5)))
                ends_ms += 60 * DAY_MS * (ends_ms < first_ms + HOUR_MS)
            rows.append((customer, f"customer {customer}", ends_ms))
        with self._connected() as database:
            database.execute("DROP TABLE IF EXISTS reminder_customers")
            database.execute(TABLE)
            self._insert(database, rows)

    def leave(self) -> int:
        """
        One customer in a hundred leaves.
        """
        return self._change("DELETE FROM reminder_customers WHERE customer % 100 = 99")

    def renew(self) -> int:
        """
        One in two hundred stays for another year.
        """
        return self._change(
            "UPDATE reminder_customers SET ends_ms = ends_ms + 31536000000 WHERE customer % 200 = 98"
        )

    def join(self, first: int, count: int, begin: datetime) -> int:
        """
        Some are new.
        """
        ends_ms = round((begin + AHEAD + timedelta(days=90)).timestamp() * 1000)
        rows = [(first + number, f"customer {first + number}", ends_ms) for number in range(count)]
        with self._connected() as database:
            self._insert(database, rows)
        return count

    def rows(self) -> list[tuple[int, str, int]]:
        """
        All of them.
        """
        with self._connected() as database:
            return database.execute("SELECT customer, name, ends_ms FROM reminder_customers").fetchall()

    def _change(self, sql: str) -> int:
        with self._connected() as database:
            return int(database.execute(sql).rowcount)

    def _insert(self, database: Any, rows: list[tuple[int, str, int]]) -> None:
        database.cursor().executemany(INSERT[self.url.partition(":")[0]], rows)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """
        A connection whose work is committed in the end.
        """
        if self.url.startswith("sqlite"):
            database: Any = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        else:
            import psycopg  # noqa: PLC0415  # only who has a PostgreSQL needs it

            try:
                database = psycopg.connect(self.url)
            except psycopg.Error as error:
                raise SystemExit(f"the database cannot be reached: {error}") from error
        try:
            with database:
                yield database
        finally:
            database.close()
