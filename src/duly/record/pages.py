"""
Rows in the order of a time that an index holds, a page at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, or_, select, tuple_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Column, ColumnElement, Row, Select


class Place(NamedTuple):
    """
    Behind which row a page begins; with no more than a time, before all rows of that time.
    """

    at_ms: int
    topic: str = ""
    id: str = ""


def page_of(
    column: Column[int], namespace: str, after: Place, limit: int, *more: ColumnElement[Any]
) -> Select[Any]:
    """
    Ask for rows behind a place: their times, the keys of their jobs, and *more*.
    """
    columns = column.table.c
    same_time = and_(column == after.at_ms, tuple_(columns.topic, columns.id) > tuple_(after.topic, after.id))
    return (
        select(column.label("at_ms"), columns.topic, columns.id, *more)
        # The first condition says it in words that an index begins with.
        .where(column >= after.at_ms, or_(column > after.at_ms, same_time), columns.namespace == namespace)
        .order_by(column, columns.topic, columns.id)
        .limit(limit)
    )


def place_behind(rows: Sequence[Row[Any]], limit: int) -> Place | None:
    """
    Where the page behind *rows* begins, None if they are the last ones.
    """
    return Place(rows[-1].at_ms, rows[-1].topic, rows[-1].id) if len(rows) == limit else None
