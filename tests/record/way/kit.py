"""
Short words for tests of the record's way to Redis and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select

from duly.ids import new_request
from duly.job import JobKey
from duly.record.clock import Moment
from duly.record.rows import JobRow, next_revision, row_of
from duly.record.tables import attempts, jobs, positions
from tests.store.kit import order

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from duly.record.database import Database

NOW = 1_000_000
HORIZON_MS = 60_000


def promised(id_: str, due_ms: int = NOW, *, namespace: str, **columns: Any) -> JobRow:
    """
    A row as an enqueue makes it, but for some columns.
    """
    row = row_of(namespace, order(id_, due_ms=due_ms), new_request(), Moment(NOW, NOW))
    return row._replace(**columns)


async def commit(database: Database, *rows: JobRow) -> None:
    def work(connection: Connection) -> None:
        connection.execute(insert(jobs), [row._asdict() for row in rows])

    await database.write(work)


async def change(database: Database, row: JobRow, **columns: Any) -> JobRow:
    """
    A later revision of a row, in its place.
    """
    revision = next_revision(Moment(NOW, NOW), row.revision)
    later = row._replace(revision=revision, relay_ms=row.due_ms, **columns)

    def work(connection: Connection) -> None:
        connection.execute(
            jobs.update().where(jobs.c.topic == row.topic, jobs.c.id == row.id).values(**later._asdict())
        )

    await database.write(work)
    return later


async def rows_of(database: Database) -> dict[str, JobRow]:
    """
    All rows by their ids.
    """

    def work(connection: Connection) -> list[JobRow]:
        return [JobRow(*row) for row in connection.execute(select(jobs))]

    return {row.id: row for row in await database.read(work)}


async def runs_of(database: Database) -> list[Any]:
    return await database.read(
        lambda connection: list(connection.execute(select(attempts).order_by(attempts.c.token)))
    )


async def position_of(database: Database, shard: int) -> Any:
    """
    How far the record has followed a shard.
    """
    return await database.read(
        lambda connection: connection.execute(select(positions).where(positions.c.shard == shard)).first()
    )


def key(id_: str) -> JobKey:
    return JobKey("mail", id_)
