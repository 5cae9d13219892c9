"""
Short words for tests of the record: rows as they are in the database, and jobs made from them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from duly.job import JobKey, JobState, Lane, Order
from duly.record.tables import jobs
from duly.store import Promise

if TYPE_CHECKING:
    from duly.record.database import Database
    from duly.store import Store

REVISION = 1_700_000_000_000_000
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def row(namespace: str, id_: str, **changes: Any) -> dict[str, Any]:
    """
    A row of a job that is due in an hour and that the queue has.
    """
    moment = now_ms()
    return {
        "namespace": namespace,
        "topic": "mail",
        "id": id_,
        "revision": REVISION,
        "request": b"reques",
        "state": JobState.scheduled,
        "due_ms": moment + HOUR_MS,
        "relay_ms": None,
        "hydrated": REVISION,
        "generation": 1,
        "lane": Lane.normal,
        "ttr_ms": 0,
        "expires_ms": 0,
        "retain_s": None,
        "max_crashes": 0,
        "attempts": 0,
        "crashes": 0,
        "payload": b'{"to":"a"}',
        "envelope": b"",
        "outcome": None,
        "accepted_ms": moment,
        "changed_ms": moment,
        "started_ms": None,
        "ended_ms": None,
        "lateness_ms": None,
    } | changes


async def write_rows(database: Database, *rows: dict[str, Any]) -> None:
    await database.write(lambda connection: connection.execute(insert(jobs), list(rows)) and None)


async def change_row(database: Database, id_: str, **values: Any) -> None:
    await database.write(
        lambda connection: connection.execute(update(jobs).where(jobs.c.id == id_).values(**values)) and None
    )


async def read_rows(database: Database) -> dict[str, Any]:
    """
    All rows by their ids.
    """
    found = await database.read(lambda connection: connection.execute(select(jobs)).all())
    return {each.id: each for each in found}


async def hydrate(store: Store, *rows: dict[str, Any]) -> None:
    """
    Take rows to the queue, as the relay does.
    """
    await store.hydrate(
        Promise(
            Order(
                JobKey(each["topic"], each["id"]),
                each["payload"],
                due_ms=each["due_ms"],
                lane=each["lane"],
                expires_ms=each["expires_ms"],
                ttr_ms=each["ttr_ms"],
                retain_s=each["retain_s"],
                max_crashes=each["max_crashes"],
                envelope=each["envelope"],
            ),
            each["revision"],
            each["request"],
        )
        for each in rows
    )


async def both(database: Database, store: Store, *rows: dict[str, Any]) -> None:
    """
    Rows that the queue agrees with.
    """
    await write_rows(database, *rows)
    await hydrate(store, *rows)
