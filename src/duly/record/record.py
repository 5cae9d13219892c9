"""
The record beside the store: what is asked of the queue is written down first, then told to Redis.

But what Redis might begin meanwhile is ended, or held, before its row changes; see `holding`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from msgspec.structs import replace

from duly.bulk import in_bulk, unless_all_failed
from duly.connection import CallRefused
from duly.errors import DulyError, JobExists, OutcomeUnknown, RecordUnavailable, StoreUnavailable
from duly.group import chunks
from duly.ids import new_request, request_of
from duly.job import JobKey, JobState, Order
from duly.record import writes
from duly.record.clock import Clock
from duly.record.commits import Commits, Kind
from duly.record.crashpoints import crash_point
from duly.record.holding import Holding
from duly.record.idempotency import accept_once
from duly.record.limits import NO_LIMIT, RecordLimits, accept_within
from duly.record.notices import Notifier
from duly.record.schema import require
from duly.record.sessions import after_commit, within
from duly.record.stored import find
from duly.record.writes import Cancelled, Seen, Wanted, Written
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from typing import Self, TypeVar

    from sqlalchemy import Connection

    from duly.connection import Link
    from duly.ids import Repeatable
    from duly.job import Accepted, Job, Placed
    from duly.record.clock import Moment
    from duly.record.database import Database
    from duly.record.guard import Guard
    from duly.record.limits import Room
    from duly.record.rows import JobRow
    from duly.record.sessions import AnySession
    from duly.store import Store

    T = TypeVar("T")

log = logging.getLogger("duly.record")

AWAY_S = 5.0  #: how long a queue that did not answer at first is not compared again
APART_MS = 1_000  #: how far apart two processes may tell the time of a row


class Relaying(Protocol):
    """
    What brings rows to Redis.
    """

    async def push(self, rows: Sequence[JobRow]) -> object:
        """
        Bring rows that were just committed, as far as Redis answers.
        """

    def hint(self) -> None:
        """
        Say that rows were committed by somebody else; on the event loop.
        """


class Record:
    """
    The verbs of the store that promise something, each with the database in between.

    With a *session* of the caller only its row is written, in the transaction of that session: it is a
    promise when that is committed, and nothing when it is rolled back.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        *,
        relay: Relaying | None = None,
        clock: Clock | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.database = database
        self.store = store
        self.relay = relay  #: None: rows wait for the relay of another process
        self.clock = clock or Clock(store)
        self.guard = guard  #: None: somebody else answers for the queue
        self.commits = Commits(database)
        self.absence = self.clock.absence  #: whether the queue is away, for all who can do without it
        self._holding = Holding(store, self.absence)
        self._namespace = store.namespace
        self._call: Repeatable | None = None  #: what is asked of it is this
        self._loop: asyncio.AbstractEventLoop | None = None
        self._first = asyncio.Lock()
        self._away_until_s = 0.0
        self._notifier = Notifier(database, store.namespace)
        self._limits = RecordLimits(database, store, self.clock)
        self._accepting: Kind[Wanted, Written] = Kind(
            self._accept,
            key=_wanted_key,
            size=_wanted_size,
            after=self._push_written,
            around=self._within_limits,
        )

    @property
    def link(self) -> Link:
        """
        The way to the store's server.
        """
        return self.store.link

    def repeatable(self, call: Repeatable | None) -> Self:
        """
        The same record for one call that its sender may send again.

        A row knows which call changed it last: a repeat changes nothing, unless others have changed it since.
        """
        if call is None:
            return self
        same = copy.copy(self)
        same._call = call  # noqa: SLF001  # its own
        return same

    @property
    def _repeats(self) -> bool:
        """
        Whether what is asked may have been done before.
        """
        return self._call is not None and self._call.age_ms is not None

    def _check_repeat(
        self, connection: Connection, keys: Sequence[JobKey], request: bytes, now: Moment
    ) -> None:
        """
        Refuse a repeated call about jobs that others have changed since it was sent first.

        Raises:
            OutcomeUnknown: Somebody has.
        """
        if self._call is None or self._call.age_ms is None:
            return
        first_ms = now.floor_ms - self._call.age_ms - APART_MS
        for key, row in find(connection, self._namespace, keys, lock=True).items():
            if row.request != request and row.changed_ms >= first_ms:
                raise OutcomeUnknown(
                    f"{key} was changed since this call was first sent, which may have been made then: "
                    "look at the job, and call again if need be"
                )

    @asynccontextmanager
    async def _held(self, key: JobKey, revision: int | None) -> AsyncIterator[Mapping[JobKey, Seen]]:
        if self._repeats:
            # It may be another job by now, which is not to be touched before its row has told.
            yield await self._holding.seen([key])
            return
        async with self._holding.held(key, revision) as seen:
            yield seen

    def _request(self) -> bytes:
        return new_request() if self._call is None else self._call.request

    async def open(self) -> None:
        """
        Look whether the tables fit, and what time it is at the server; nothing is written.

        Raises:
            RecordUnavailable: The database cannot be reached.
            LayoutMismatch: Its tables are missing or of another version; the message says what to do.
        """
        self._loop = asyncio.get_running_loop()
        self._notifier.open()
        await self.database.read(require)
        await self.clock.look()
        if self.store.link.before is not None:
            # Nobody could reach it a moment ago.
            self._away_until_s = time.monotonic() + AWAY_S
        if self.guard is not None:
            self.store.agree, self.store.generation = self.guard.agree, self.guard.known

    async def agreed(self) -> None:
        """
        Have the queue compared with the rows, unless that was done: it may have lost a part of its past.

        Writes to the database, so not on the way of a caller who has a transaction of its own open there:
        SQLite has one writer at a time.

        Raises:
            ServerUnsuitable: The queue belongs to another record.
            StoreUnavailable, RecordUnavailable: One of them is away.
        """
        if self.guard is not None and self.guard.known() is None:
            async with self._first:
                if self.guard.known() is None:
                    await self.guard.agree()

    async def agreed_if_there(self) -> None:
        """
        The same for who has something to promise: a queue that is away is compared when it is back.

        Raises:
            ServerUnsuitable, RecordUnavailable: As above.
        """
        if self._settled():
            return
        async with self._first:
            if self._settled():
                return
            try:
                await cast("Guard", self.guard).agree()
            except RecordUnavailable:
                raise
            except (StoreUnavailable, CallRefused, OutcomeUnknown) as error:
                # Nobody else waits for what does not answer.
                self._away_until_s = time.monotonic() + AWAY_S
                log.warning("what is promised now waits in the record: %s", error)

    def _settled(self) -> bool:
        compared = self.guard is None or self.guard.known() is not None
        return compared or time.monotonic() < self._away_until_s

    async def aclose(self) -> None:
        """
        Close connections to the database.
        """
        await self._notifier.settle()
        await self.absence.aclose()
        await self.database.aclose()

    # -- enqueue ------------------------------------------------------------------------------------------

    async def enqueue(self, order: Order, *, session: AnySession | None = None) -> Placed:
        """
        Promise one job; calls that are under way together share a transaction.

        Raises:
            JobExists: Its id is taken and ``on_conflict`` is "raise".
            QueueFull: Its topic is at the backlog limit.
            RecordUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        wanted = Wanted(order, request_of(order))
        if session is not None:
            [written] = await self._accept_in(session, [wanted])
        else:
            [written] = await self._seen_standing([await self.commits.ask(self._accepting, wanted)])
        return _placed(written)

    async def enqueue_many(
        self, orders: Iterable[Order], *, session: AnySession | None = None
    ) -> list[Placed | DulyError]:
        """
        Promise any number of jobs; the answer holds one outcome for each, in their order.

        Raises:
            Conflict: Another revision stands.
            RecordUnavailable, OutcomeUnknown: What became of every single one, so that it is not overlooked.
        """
        if session is not None:
            return await self._enqueue_within(session, orders)
        return unless_all_failed(
            await in_bulk(self._send, 1, ((0, order, request_of(order)) for order in orders))
        )

    async def promise(self, batch: Sequence[tuple[Order, bytes]]) -> list[Placed | DulyError]:
        """
        Promise jobs, all with different keys, in one transaction; one outcome for each.

        With each order come six bytes that tell this call of it from another; repeated, they are the same.

        Raises:
            RecordUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        wanted = [Wanted(*each) for each in batch]
        async with self._within_limits(wanted) as accept:
            written = await self.database.write(lambda connection: accept(connection, wanted))
            await self._push_written(written)
        return [each.answer for each in await self._seen_standing(written)]

    async def _send(self, _: int, batch: list[tuple[Order, bytes]]) -> list[Placed | DulyError]:
        return await self.promise(batch)

    async def _enqueue_within(self, session: AnySession, orders: Iterable[Order]) -> list[Placed | DulyError]:
        wanted = [Wanted(order, request_of(order)) for order in orders]
        answers: list[Placed | DulyError] = []
        for batch in chunks(wanted, key=_wanted_key, size=_wanted_size):
            answers += [each.answer for each in await self._accept_in(session, batch)]
        return answers

    async def _accept_in(self, session: AnySession, wanted: Sequence[Wanted]) -> list[Written]:
        # By the session's own rows, too: it may have promised some that nobody else sees yet.
        room = await self._limits.room(wanted, partial(within, session))
        written = await self._within(session, partial(self._accept, wanted=wanted, room=room))
        return [_within_session(each) for each in written]

    async def _seen_standing(self, written: Sequence[Written]) -> Sequence[Written]:
        """
        Tell of jobs that were there already what Redis knows of them: that they run, say, or have ended.
        """
        met = [each.stands for each in written if each.stands is not None and not each.stands.ended]
        if not met:
            return written
        try:
            jobs = await self.absence.ask(partial(Views(self.store).get_many, [row.key for row in met]))
        except StoreUnavailable as error:
            log.debug("the rows tell alone: %s", error)
            return written
        found = {job.key: job for job in jobs if job is not None}
        return [_as_found(each, found) for each in written]

    @asynccontextmanager
    async def _within_limits(
        self, wanted: Sequence[Wanted]
    ) -> AsyncIterator[Callable[[Connection, Sequence[Wanted]], list[Written]]]:
        async with self._limits.kept(wanted) as room:
            yield partial(self._accept, room=room)

    def _accept(
        self, connection: Connection, wanted: Sequence[Wanted], room: Room = NO_LIMIT
    ) -> list[Written]:
        now = self.clock.now()

        def accept(connection: Connection, wanted: Sequence[Wanted]) -> list[Written]:
            return accept_within(connection, self._namespace, wanted, now, room)

        written = accept_once(connection, self._namespace, wanted, now, accept)
        crash_point("accept.written")
        return written

    # -- what people ask for ------------------------------------------------------------------------------

    async def cancel(
        self,
        keys: Sequence[JobKey],
        *,
        reason: str = "cancelled",
        revision: int | None = None,
        session: AnySession | None = None,
    ) -> list[JobState | Accepted | None]:
        """
        End jobs that have not ended; the answer is the state each is in now, None where there is no job.

        With a *revision* only that one is ended.
        With a *session* it is not known whether a job runs: if it does when that is committed, the run is
        stopped, and if it has just ended, its row says all the same that it was cancelled.

        Raises:
            RecordUnavailable, OutcomeUnknown: What Redis has of the jobs is cancelled; their rows follow.
        """
        asked, request = list(dict.fromkeys(keys)), self._request()
        if session is not None:
            seen = {}
        elif self._repeats:
            seen = await self._holding.seen(asked)
        else:
            seen = await self._holding.end(asked, reason, revision)

        def work(connection: Connection) -> list[Cancelled]:
            now = self.clock.now()
            self._check_repeat(connection, asked, request, now)
            return writes.cancel(
                connection,
                self._namespace,
                asked,
                request,
                now,
                reason=reason,
                revision=revision,
                seen=seen,
            )

        if session is not None:
            done = await self._within(session, work)
        else:
            done = await self.database.write(work)
            await self._push_all([each.row for each in done if each.row is not None])
        states: dict[JobKey, JobState | Accepted | None] = dict(
            zip(asked, (each.state for each in done), strict=True)
        )
        # What was sent before there was a record is known to Redis alone.
        strange = [key for key, state in states.items() if state is None and key in seen]
        known = await self.store.repeatable(self._call).cancel(strange, reason=reason, revision=revision)
        states |= dict(zip(strange, known, strict=True))
        return [states[key] for key in keys]

    async def reschedule(
        self,
        key: JobKey,
        *,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        revision: int | None = None,
        session: AnySession | None = None,
    ) -> Placed:
        """
        Give a job that has not started another due time.

        With a *session* it is not known whether the job runs: if it does when that is committed, the run is
        stopped, and the job runs when it is due, also if it has just ended.

        Raises:
            JobNotFound: There is no such job.
            Conflict: It runs or has ended, or *revision* does not stand any more.
        """
        when, request = Order(key, b"", delay_ms=delay_ms, due_ms=due_ms), self._request()

        def work(connection: Connection, seen: Mapping[JobKey, Seen]) -> Written:
            now = self.clock.now()
            self._check_repeat(connection, [key], request, now)
            return writes.reschedule(
                connection, self._namespace, when, request, now, revision=revision, seen=seen
            )

        if session is not None:
            return _placed(await self._within(session, partial(work, seen={})))
        async with self._held(key, revision) as seen:
            written = await self.database.write(partial(work, seen=seen))
            await self._push_written([written])
            if isinstance(written.answer, LookupError) and key in seen:
                # Sent before there was a record.
                store = self.store.repeatable(self._call)
                return await store.reschedule(key, delay_ms=delay_ms, due_ms=due_ms, revision=revision)
            return _placed(written)

    async def requeue(
        self, keys: Sequence[JobKey], *, revision: int | None = None, session: AnySession | None = None
    ) -> list[Placed | DulyError]:
        """
        Run ended jobs again; one outcome for each, `Conflict` where it has not ended.

        With a *revision* only that one is run again.
        """
        asked, request = list(dict.fromkeys(keys)), self._request()
        seen = {} if session is not None else await self._holding.seen(asked)

        def work(connection: Connection) -> list[Written]:
            now = self.clock.now()
            self._check_repeat(connection, asked, request, now)
            return writes.requeue(
                connection, self._namespace, asked, request, now, revision=revision, seen=seen
            )

        if session is not None:
            done = await self._within(session, work)
        else:
            done = await self.database.write(work)
            await self._push_written(done)
        answers = dict(zip(asked, (each.answer for each in done), strict=True))
        strange = [key for key in asked if isinstance(answers[key], LookupError) and key in seen]
        known = await self.store.repeatable(self._call).requeue(strange, revision=revision)
        answers |= dict(zip(strange, known, strict=True))
        return [answers[key] for key in keys]

    async def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* be claimed.
        """
        await self.store.pause(topic)

    async def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* be claimed again.
        """
        await self.store.resume(topic)

    async def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait, in Redis or in rows that it has not been given.
        """
        await self.store.limit(topic, backlog)

    # -- the way to Redis ---------------------------------------------------------------------------------

    async def _within(self, session: AnySession, work: Callable[[Connection], T]) -> T:
        await self.clock.look()

        answer = await within(session, work)
        after_commit(session, self._committed)
        return answer

    def _committed(self) -> None:
        """
        Tell the relays of this process and of others; from any thread.
        """
        self.hint()
        self._notifier.tell()

    def hint(self) -> None:
        """
        Have the relay look at once; from any thread.
        """
        if self.relay is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.relay.hint)

    async def _push_written(self, written: Sequence[Written]) -> None:
        await self._push_all([each.row for each in written if each.row is not None])

    async def _push_all(self, rows: Sequence[JobRow]) -> None:
        await self.clock.look()
        if rows and self.relay is not None:
            await self.relay.push(rows)


def _placed(written: Written) -> Placed:
    if isinstance(written.answer, DulyError):
        raise written.answer
    return written.answer


def _within_session(written: Written) -> Written:
    placed = written.answer
    if isinstance(placed, DulyError) or not placed.created:
        return written
    return written._replace(answer=replace(placed, in_session=True))


def _as_found(written: Written, found: Mapping[JobKey, Job]) -> Written:
    row = written.stands
    job = None if row is None else found.get(row.key)
    if row is None or row.ended or job is None or job.revision != row.revision:
        return written
    if isinstance(written.answer, JobExists):
        return written._replace(answer=writes.exists(row.key, job.state))
    if isinstance(written.answer, DulyError):
        return written
    return written._replace(answer=replace(written.answer, due_ms=job.due_ms, state=job.state))


def _wanted_key(wanted: Wanted) -> JobKey:
    return wanted.order.key


def _wanted_size(wanted: Wanted) -> int:
    return len(wanted.order.payload) + len(wanted.order.envelope)
