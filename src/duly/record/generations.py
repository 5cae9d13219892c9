"""
Generations of the queue: lives of its servers that were compared with the rows.  The newest one counts.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete, func, select, update

from duly.record.dialects import insert_absent
from duly.record.tables import generations, jobs, positions, watermarks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Select

REASON = 400  #: characters of it that are kept
REMEMBERED = 200  #: generations whose servers are known not to count any more
#: Clocks of servers may differ by so much: what was promised so long after a generation began is checked.
APART_MS = 5 * 60_000
#: What was due this long before a loss is brought back first, then what was due earlier.
OVERDUE_MS = 10 * 60_000


class Generation(NamedTuple):
    """
    One life of the queue's servers, from when they were compared with the record until another one is.
    """

    number: int
    record_id: str
    since_ms: int  #: by the queue's clock
    lives: tuple[str, ...]  #: of the server of each shard
    lost: tuple[int, ...]  #: shards that were behind the record when it began
    renewed: int = 0  #: grows as long as its servers are approved

    def may_repeat(self, revision: int) -> bool:
        """
        Return whether a job of *revision* was promised before, so that its row may say that it has ended.
        """
        return self.number > 1 and revision < (self.since_ms + APART_MS) * 1_000


def newest_generation(connection: Connection, namespace: str) -> Generation | None:
    """
    The generation that counts, None in a record that no queue has used yet.
    """
    found = last_generations(connection, namespace, 1)
    return found[0] if found else None


def last_generations(connection: Connection, namespace: str, limit: int = REMEMBERED) -> list[Generation]:
    """
    The last generations, the newest first.
    """
    columns = generations.c
    found = connection.execute(
        select(
            *(columns.generation, columns.record_id, columns.since_ms),
            *(columns.lives, columns.lost, columns.renewed),
        )
        .where(columns.namespace == namespace)
        .order_by(columns.generation.desc())
        .limit(limit)
    )
    return [
        Generation(number, record_id, since_ms, tuple(json.loads(lives)), tuple(json.loads(lost)), renewed)
        for number, record_id, since_ms, lives, lost, renewed in found
    ]


def first_generation(
    connection: Connection, namespace: str, lives: Sequence[str], now_ms: int
) -> Generation | None:
    """
    Begin the record of a queue; None if somebody else has.
    """
    made = Generation(1, secrets.token_hex(8), now_ms, tuple(lives), ())
    return made if _begin(connection, namespace, made, "the record began") else None


def next_generation(
    connection: Connection,
    namespace: str,
    was: Generation,
    lives: Sequence[str],
    now_ms: int,
    lost: Mapping[int, str],
) -> Generation | None:
    """
    Begin a generation of servers that were compared; None if somebody else has begun one.

    What was open on shards that have *lost* something, with what shows it, is to be brought back to them.
    """
    connection.execute(_first(namespace).with_for_update())
    made = Generation(was.number + 1, was.record_id, now_ms, tuple(lives), tuple(sorted(lost)))
    reason = "; ".join(f"shard {shard}: {lost[shard]}" for shard in sorted(lost))
    if not _begin(connection, namespace, made, reason or "another server, or another life of it"):
        return None
    for table in (positions, watermarks):
        connection.execute(delete(table).where(table.c.namespace == namespace, table.c.shard.in_(made.lost)))
    if made.lost:
        # A new loss of the same shards: what was still to be brought back is among what is brought back now.
        earlier = generations.c.generation < made.number
        connection.execute(
            update(generations)
            .where(generations.c.namespace == namespace, earlier, generations.c.back_pass.is_not(None))
            .where(generations.c.lost == json.dumps(made.lost))
            .values(back_pass=None)
        )
    return made


def _begin(connection: Connection, namespace: str, made: Generation, reason: str) -> bool:
    row = {
        "namespace": namespace,
        "generation": made.number,
        "record_id": made.record_id,
        "since_ms": made.since_ms,
        "reason": reason[:REASON],
        "lives": json.dumps(made.lives),
        "lost": json.dumps(made.lost),
        "renewed": 0,
        "back_pass": 1 if made.lost else None,
        "back_from_ms": made.since_ms - OVERDUE_MS,
        "back_ms": made.since_ms - OVERDUE_MS,
        "back_topic": "",
        "back_id": "",
        "brought_back": 0,
    }
    was = newest_generation(connection, namespace)
    if was is not None and was.number >= made.number:
        return False
    insert_absent(connection, generations, [row])
    # Asked, not counted: not every database tells.
    return made in last_generations(connection, namespace, 1)


def renew(connection: Connection, namespace: str, number: int) -> bool:
    """
    Note that the servers of a generation are approved; False if a later one has begun.
    """
    columns = generations.c
    connection.execute(
        update(generations)
        .where(columns.namespace == namespace, columns.generation == number)
        .values(renewed=columns.renewed + 1)
    )
    newest = newest_generation(connection, namespace)
    return newest is not None and newest.number == number


def still_counts(connection: Connection, namespace: str, generation: int) -> bool:
    """
    Whether no later generation has begun, nor will before this transaction has ended.
    """
    connection.execute(_first(namespace).with_for_update(read=True))
    columns = generations.c
    newest = connection.execute(
        select(func.max(columns.generation)).where(columns.namespace == namespace)
    ).scalar()
    return newest is None or newest <= generation


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
