"""
Backlog limits kept before a row is committed: Redis refuses nothing that was promised.

Redis has the limits and counts what waits there.  Rows that it has not been given yet are counted here: those
that it is given next one by one, as it may have some of them by now, and those beyond the horizon.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import StoreUnavailable
from duly.job import JobState
from duly.record.rows import row_of, same
from duly.record.stored import find
from duly.record.unbrought import far_topics, near_rows
from duly.record.writes import Seen, Written, accept
from duly.store.answers import full
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from duly.job import JobKey
    from duly.record.clock import Clock, Moment
    from duly.record.database import Database
    from duly.record.unbrought import FarTopic
    from duly.record.writes import Wanted
    from duly.store import Backlog, Store

    Unbrought = tuple[dict[JobKey, int], dict[str, FarTopic]]
    Ask = Callable[[Callable[[Connection], Unbrought]], Awaitable[Unbrought]]

log = logging.getLogger("duly.record")


class Room(NamedTuple):
    """
    What a call may add.
    """

    left: Mapping[str, int]  #: places, for each topic that has a limit
    begun: frozenset[JobKey] = frozenset()  #: Redis runs or has ended them: to replace one takes a place


NO_LIMIT = Room({})


class RecordLimits:
    """
    The room that topics have for more jobs.
    """

    def __init__(self, database: Database, store: Store, clock: Clock) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._first = asyncio.Lock()

    @asynccontextmanager
    async def kept(self, wanted: Sequence[Wanted]) -> AsyncIterator[Room]:
        """
        Tell the room for *wanted*, which nobody else of this process takes before the end of the context.
        """
        if not await self._backlogs(wanted):
            yield NO_LIMIT
            return
        async with self._first:
            yield await self.room(wanted, self._database.read)

    async def room(self, wanted: Sequence[Wanted], ask: Ask) -> Room:
        """
        Tell the room for *wanted*, by the rows that *ask* sees.

        There is no limit while Redis cannot be asked: the record takes jobs then, too.
        """
        backlogs = await self._backlogs(wanted)
        if not backlogs:
            return NO_LIMIT
        near, far = await ask(partial(self._unbrought, list(backlogs)))
        replaced = [
            order.key for order, _ in wanted if order.on_conflict == "replace" and order.key.topic in backlogs
        ]
        seen = await self._seen([*near, *replaced])
        if seen is None:
            return NO_LIMIT
        left = {topic: limit - waiting for topic, (limit, waiting) in backlogs.items()}
        for topic in far.keys() & left:
            left[topic] -= far[topic].jobs
        for key, revision in near.items():
            left[key.topic] -= _adds(seen.get(key), revision)
        return Room(
            left,
            frozenset(key for key in replaced if key in seen and seen[key].state > JobState.ready),
        )

    def _unbrought(self, topics: Sequence[str], connection: Connection) -> Unbrought:
        namespace, far_ms = self._store.namespace, self._clock.now().far_ms
        return (
            near_rows(connection, namespace, topics, far_ms),
            far_topics(connection, namespace, far_ms),
        )

    async def _backlogs(self, wanted: Sequence[Wanted]) -> dict[str, Backlog]:
        """
        The topics of *wanted* that have a limit; none while Redis does not answer.
        """
        topics = list(dict.fromkeys(order.key.topic for order, _ in wanted))
        try:
            return await self._clock.absence.ask(partial(self._store.backlogs, topics))
        except StoreUnavailable as error:
            log.debug("limits are not known: %s", error)
            return {}

    async def _seen(self, keys: Sequence[JobKey]) -> dict[JobKey, Seen] | None:
        """
        What Redis says of jobs; None where it does not answer.
        """
        if not keys:
            return {}
        try:
            found = await self._clock.absence.ask(partial(Views(self._store).get_many, keys))
        except StoreUnavailable as error:
            log.debug("limits are not known: %s", error)
            return None
        return {job.key: Seen(job.revision, job.state) for job in found if job is not None}


def _adds(seen: Seen | None, revision: int) -> bool:
    """
    Whether a row that Redis may not have been given adds to what Redis counts as waiting.
    """
    if seen is None:
        return True
    return seen.revision < revision and seen.state > JobState.ready


def accept_within(
    connection: Connection, namespace: str, wanted: Sequence[Wanted], now: Moment, room: Room
) -> list[Written]:
    """
    Promise jobs as `accept` does, but for those that their topics have no room for.
    """
    refused = _refused(connection, namespace, wanted, now, room) if room.left else frozenset()
    if not refused:
        return accept(connection, namespace, wanted, now)
    taken = [each for each in wanted if each.order.key not in refused]
    answers = iter(accept(connection, namespace, taken, now) if taken else ())
    return [Written(full(each.order.key)) if each.order.key in refused else next(answers) for each in wanted]


def _refused(
    connection: Connection, namespace: str, wanted: Sequence[Wanted], now: Moment, room: Room
) -> frozenset[JobKey]:
    left = dict(room.left)
    limited = [each for each in wanted if each.order.key.topic in left]
    standing = find(connection, namespace, [order.key for order, _ in limited])
    refused: set[JobKey] = set()
    for order, request in limited:
        key, old = order.key, standing.get(order.key)
        # One that this very call made took its place then: the transaction is run once more.
        again = old is not None and old.request == request
        if old is not None and not again:
            new = row_of(namespace, order, request, now)
            waits = not old.ended and key not in room.begun
            if order.on_conflict != "replace" or waits or same(old, new):
                continue
        if left[key.topic] < 1 and not again:
            refused.add(key)
        else:
            left[key.topic] -= 1
    return frozenset(refused)
