"""
How a record stands to its queue: which generation counts, what is brought back, what waits, who leads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from duly.record.bringback import progress_of
from duly.record.schema import reached, require
from duly.record.tables import generations, jobs, leaders

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from duly.record.target import AnyTarget

COUNTED = 100_000  #: rows that wait are counted up to here


def status_of(source: AnyTarget, namespace: str) -> dict[str, Any]:
    """
    What the rows say of a namespace; the generation is None in a record that no queue has used yet.

    Raises:
        UsageError: It is no database of a record.
        RecordUnavailable, LayoutMismatch: It cannot be reached, or does not fit.
    """
    with reached(source) as engine, engine.connect() as connection:
        require(connection)
        return {
            "generation": _generation(connection, namespace),
            "brought_back": [
                {
                    "generation": progress.generation,
                    "shards": list(progress.lost),
                    "jobs": progress.brought,
                    "done": progress.now_pass is None,
                    "due_ms": None if progress.now_pass is None else progress.place.at_ms,
                }
                for progress in progress_of(connection, namespace, all_=True)[:10]
            ],
            "waiting": _waiting(connection, namespace),
            "led": bool(
                connection.execute(select(leaders.c.holder).where(leaders.c.namespace == namespace)).scalar()
            ),
        }


def _generation(connection: Connection, namespace: str) -> dict[str, Any] | None:
    columns = generations.c
    found = connection.execute(
        select(columns.generation, columns.since_ms, columns.reason, columns.lost)
        .where(columns.namespace == namespace)
        .order_by(columns.generation.desc())
        .limit(1)
    ).first()
    if found is None:
        return None
    number, since_ms, reason, lost = found
    return {"number": number, "since_ms": since_ms, "reason": reason, "lost_shards": json.loads(lost)}


def _waiting(connection: Connection, namespace: str) -> int:
    """
    How many rows the queue has not been given yet, those beyond the horizon included.
    """
    some = (
        select(jobs.c.id)
        .where(jobs.c.namespace == namespace, jobs.c.relay_ms.is_not(None))
        .limit(COUNTED)
        .subquery()
    )
    return connection.execute(select(func.count()).select_from(some)).scalar() or 0
