"""
How far the record has followed the events of Redis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select, update

from duly.events import Offset
from duly.record.dialects import insert_absent
from duly.record.tables import positions

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Place(NamedTuple):
    """
    How far the record has followed the events of a shard.
    """

    offset: Offset
    at_ms: int


def place_of(connection: Connection, namespace: str, shard: int) -> Place | None:
    """
    How far the record has followed a shard; None if it has not begun.
    """
    columns = positions.c
    statement = select(columns.epoch, columns.counter, columns.nonce, columns.at_ms).where(
        columns.namespace == namespace, columns.shard == shard
    )
    row = connection.execute(statement).first()
    return Place(Offset(row.epoch, row.counter, row.nonce), row.at_ms) if row else None


def move(connection: Connection, namespace: str, shard: int, before: Place | None, after: Place) -> bool:
    """
    Note how far the record has followed a shard, unless somebody else did meanwhile; whether it is so far.
    """
    columns = positions.c
    values = after.offset._asdict() | {"at_ms": after.at_ms}
    if before is None:
        insert_absent(connection, positions, [{"namespace": namespace, "shard": shard} | values])
    else:
        connection.execute(
            update(positions)
            .where(
                columns.namespace == namespace,
                columns.shard == shard,
                columns.epoch == before.offset.epoch,
                columns.counter == before.offset.counter,
            )
            .values(**values)
        )
    # Asked, not counted: it may be noted a second time, after the answer to the first was lost.
    return place_of(connection, namespace, shard) == after
