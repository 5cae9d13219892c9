"""
What the rows know of the queue's memory: its generations, how far it was read, and what changed lately.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete, select, update

from duly.events import Offset
from duly.job import JobKey, JobState
from duly.record.dialects import insert_absent
from duly.record.pages import Place, page_of, place_behind
from duly.record.rows import AT_ONCE_MS
from duly.record.stored import pick
from duly.record.tables import attempts, generations, jobs, positions

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

PAGE = 1_000
REASON = 400  #: characters of it that are kept


class Generation(NamedTuple):
    """
    One memory of the queue: from when it was found to be behind, until the next time.
    """

    number: int
    record_id: str


class Changed(NamedTuple):
    """
    A row that was changed lately, as far as a comparison needs it.
    """

    key: JobKey
    revision: int
    ended: bool


def newest_generation(connection: Connection, namespace: str) -> Generation | None:
    """
    The generation that counts, None in a record that no queue has used yet.
    """
    found = connection.execute(
        select(generations.c.generation, generations.c.record_id)
        .where(generations.c.namespace == namespace)
        .order_by(generations.c.generation.desc())
        .limit(1)
    ).first()
    return Generation(*found) if found else None


def first_generation(connection: Connection, namespace: str, server_id: str, now_ms: int) -> Generation:
    """
    Begin the record of a queue, unless somebody did.
    """
    made = Generation(1, secrets.token_hex(8))
    _begin(connection, namespace, made, server_id, now_ms, "the record began")
    return newest_generation(connection, namespace) or made


def raise_generation(
    connection: Connection, namespace: str, was: Generation, server_id: str, now_ms: int, reason: str
) -> Generation:
    """
    Note that the queue lost a part of its memory: whatever has not ended is to be taken to it again.

    Once for each loss, by whoever comes first.
    """
    connection.execute(_first(namespace).with_for_update())
    made = was._replace(number=was.number + 1)
    if _begin(connection, namespace, made, server_id, now_ms, reason[:REASON]):
        mine = jobs.c.namespace == namespace
        connection.execute(
            update(jobs)
            .where(mine, jobs.c.state == JobState.scheduled, jobs.c.relay_ms.is_(None))
            # At once, not near its time: the queue may have it at an earlier one, from before a change.
            .values(relay_ms=jobs.c.due_ms - AT_ONCE_MS)
        )
        connection.execute(delete(positions).where(positions.c.namespace == namespace))
    return newest_generation(connection, namespace) or made


def _begin(
    connection: Connection, namespace: str, made: Generation, server_id: str, now_ms: int, reason: str
) -> bool:
    row = {
        "namespace": namespace,
        "generation": made.number,
        "record_id": made.record_id,
        "server_id": server_id,
        "since_ms": now_ms,
        "reason": reason,
    }
    was = newest_generation(connection, namespace)
    if was is not None and was.number >= made.number:
        return False
    insert_absent(connection, generations, [row])
    mine = connection.execute(
        select(generations.c.record_id, generations.c.since_ms, generations.c.server_id).where(
            generations.c.namespace == namespace, generations.c.generation == made.number
        )
    ).one()
    return tuple(mine) == (made.record_id, now_ms, server_id)


def still_counts(connection: Connection, namespace: str, generation: int) -> bool:
    """
    Whether no later generation has begun, nor will before this transaction has ended.
    """
    connection.execute(_first(namespace).with_for_update(read=True))
    newest = newest_generation(connection, namespace)
    return newest is None or newest.number <= generation


def _first(namespace: str) -> Select[tuple[int]]:
    # The row that is always there: who begins another generation locks it, and who relies on one.
    return select(generations.c.generation).where(
        generations.c.namespace == namespace, generations.c.generation == 1
    )


def has_rows(connection: Connection, namespace: str) -> bool:
    """
    Whether anything was promised.  What the queue has been given of it may not be marked yet.
    """
    found = select(jobs.c.id).where(jobs.c.namespace == namespace).limit(1)
    return connection.execute(found).first() is not None


def positions_of(connection: Connection, namespace: str) -> dict[int, Offset]:
    """
    For each shard the last entry of its events that the rows have heard of.
    """
    found = connection.execute(
        select(positions.c.shard, positions.c.epoch, positions.c.counter, positions.c.nonce).where(
            positions.c.namespace == namespace
        )
    )
    return {shard: Offset(epoch, counter, nonce) for shard, epoch, counter, nonce in found}


def changed_since(
    connection: Connection, namespace: str, since_ms: int, after: Place | None = None
) -> tuple[list[Changed], Place | None]:
    """
    A page of rows that a call changed since, the oldest change first, behind *after*; and where it ends, None
    if it is the last one.
    """
    columns = (jobs.c.revision, jobs.c.state)
    found = connection.execute(
        page_of(jobs.c.changed_ms, namespace, after or Place(since_ms), PAGE, *columns)
    )
    rows = found.all()
    changed = [Changed(JobKey(row.topic, row.id), row.revision, JobState(row.state).ended) for row in rows]
    return changed, place_behind(rows, PAGE)


def ended_since(
    connection: Connection, namespace: str, since_ms: int, after: Place | None = None
) -> tuple[list[Changed], Place | None]:
    """
    A page of rows that say ended, of jobs of which a run ended since; and where it ends, as above.
    """
    rows = connection.execute(page_of(attempts.c.ended_ms, namespace, after or Place(since_ms), PAGE)).all()
    keys = {JobKey(row.topic, row.id) for row in rows}
    found = pick(connection, ("topic", "id", "revision", "state"), namespace, keys)
    told = [
        Changed(JobKey(topic, id_), revision, JobState(state).ended) for topic, id_, revision, state in found
    ]
    return [each for each in told if each.ended], place_behind(rows, PAGE)
