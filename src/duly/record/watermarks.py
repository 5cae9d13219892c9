"""
Watermarks: for each shard the last of its events that the rows have heard of.  A loss undoes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import or_, select, update

from duly.events import Offset
from duly.record.dialects import insert_absent
from duly.record.tables import positions, watermarks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection


def raise_watermarks(connection: Connection, namespace: str, offsets: Mapping[int, Offset]) -> None:
    """
    Note how far the events of shards had come when they were told what this transaction marks.
    """
    columns = watermarks.c
    found = connection.execute(select(columns.shard).where(columns.namespace == namespace))
    known = {shard for (shard,) in found}
    for shard in sorted(
        offsets
    ):  # in one order everywhere, so that two transactions never wait for each other
        offset = offsets[shard]
        if shard not in known:
            row = {"namespace": namespace, "shard": shard} | offset._asdict()
            if insert_absent(connection, watermarks, [row]):
                continue
        connection.execute(
            update(watermarks)
            .where(
                columns.namespace == namespace,
                columns.shard == shard,
                or_(columns.epoch != offset.epoch, columns.counter < offset.counter),
            )
            .values(**offset._asdict())
        )


def heard_of(connection: Connection, namespace: str) -> list[tuple[int, Offset]]:
    """
    Events that the queue must still have, with their shards: the last that a mark told of, and the last that
    was followed.
    """
    return [
        (shard, Offset(epoch, counter, nonce))
        for table in (watermarks, positions)
        for shard, epoch, counter, nonce in connection.execute(
            select(table.c.shard, table.c.epoch, table.c.counter, table.c.nonce).where(
                table.c.namespace == namespace
            )
        )
    ]
