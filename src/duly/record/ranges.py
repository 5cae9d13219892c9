"""
The rows of a record, cut into parts of a similar size that can be read side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select

from duly.record.mending import columns_between, seen
from duly.record.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

PAGE = 2_000  #: rows in one question


class KeyRange(NamedTuple):
    """
    Rows of a topic with ids behind `after`, up to `until`.
    """

    topic: str
    after: str = ""
    until: str | None = None  #: None: to the end


def key_ranges(connection: Connection, namespace: str, rows: int) -> list[list[KeyRange]]:
    """
    Parts of about so many *rows*: small topics are put together, large ones are cut.
    """
    mine = jobs.c.namespace == namespace
    counts = connection.execute(
        select(jobs.c.topic, func.count()).where(mine).group_by(jobs.c.topic).order_by(jobs.c.topic)
    ).all()
    parts: list[list[KeyRange]] = []
    together: list[KeyRange] = []
    room = rows
    for topic, count in counts:
        if count >= rows:
            parts += [[cut] for cut in _cut(connection, namespace, topic, count // rows, rows)]
            continue
        if count > room:
            parts.append(together)
            together, room = [], rows
        together.append(KeyRange(topic))
        room -= count
    return [*parts, together] if together else parts


def _cut(connection: Connection, namespace: str, topic: str, count: int, rows: int) -> list[KeyRange]:
    # Each bound is looked for behind the one before it, so that together they read the index once.
    bounds = [""]
    for _ in range(count - 1):
        bound = connection.scalar(
            select(jobs.c.id)
            .where(jobs.c.namespace == namespace, jobs.c.topic == topic, jobs.c.id > bounds[-1])
            .order_by(jobs.c.id)
            .offset(rows - 1)
            .limit(1)
        )
        if bound is None:
            break
        bounds.append(bound)
    return [KeyRange(topic, after, until) for after, until in zip(bounds, [*bounds[1:], None], strict=True)]


def read_range(
    engine: Engine, namespace: str, keys: KeyRange, make: Callable[..., Any] = seen
) -> Iterator[list[Any]]:
    """
    The rows of a range, page by page, each page as it is when it is come to.

    *make* makes something of the columns of each.
    """
    after = keys.after
    while True:
        # A transaction for each page: one for all of them would hold up the database's own cleaning.
        with engine.connect().execution_options(duly_reads=True) as connection:
            page = columns_between(connection, namespace, keys.topic, after, PAGE, until=keys.until)
        if page:
            yield [make(*row) for row in page]
        if len(page) < PAGE:
            return
        after = page[-1].id
