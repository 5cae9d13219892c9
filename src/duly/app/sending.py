"""
Sending jobs, and hearing of what was sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from duly.app.connecting import Connecting
from duly.context import CURRENT
from duly.defaults import MAX_CRASHES
from duly.durations import parse_timeout
from duly.errors import DulyError, OutcomeUnknown, UsageError
from duly.handle import JobHandle
from duly.handlers import Handler
from duly.job import JobKey, check_id, check_topic
from duly.mistakes import check_one_payload, check_payload, checked_jobs, no_job
from duly.newjob import NewJob, new_job
from duly.remote.replies import RemoteReplies
from duly.replies import Replies, StoreReplies
from duly.tracebacks import NOT_REACHED, shorten, shortens
from duly.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator
    from typing import Unpack

    from duly.durations import Seconds
    from duly.job import Order
    from duly.newjob import Options
    from duly.record.sessions import AnySession

R = TypeVar("R")

BATCH = 1000  #: jobs of one `enqueue_many` that go through middleware at once


class Sending(Connecting):
    """
    What producers call.
    """

    @overload
    async def enqueue(
        self, job: NewJob[R], *, session: AnySession | None = None, **options: Unpack[Options]
    ) -> JobHandle[R]: ...

    @overload
    async def enqueue(
        self,
        job: str,
        payload: object = None,
        *,
        session: AnySession | None = None,
        **options: Unpack[Options],
    ) -> JobHandle[Any]: ...

    @shortens
    async def enqueue(
        self,
        job: NewJob[R] | str,
        payload: object = None,
        *more: object,
        session: AnySession | None = None,
        **options: Unpack[Options],
    ) -> JobHandle[R] | JobHandle[Any]:
        """
        Promise to run a job; by name for senders that lack the handler's code.

        With a *session* of SQLAlchemy on the record's database the promise is part of its transaction: its
        commit makes it, and a rollback leaves nothing of it.

        Raises:
            UsageError: Something about it is wrong; nothing was sent.
            JobExists, QueueFull: It was not accepted.
            StoreUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        if isinstance(job, str):
            if more:
                check_one_payload(job, payload, more)
            job = new_job(job, payload, self.settings.limits, self.codec)
        elif not isinstance(job, NewJob):
            raise no_job(job, tuple(arg for arg in (payload, *more) if arg is not None))
        elif payload is not None or more:
            check_payload(job, payload, more)
        if options:
            job = job.options(**options)
        try:
            return await self._send_one(job, session)
        except NOT_REACHED as error:
            raise shorten(error) from None

    async def enqueue_awaited(self, job: NewJob[R]) -> JobHandle[R]:
        """
        Promise to run a job for a caller that waits for its end: its result is kept for a minute at least.

        To ask for the result after `enqueue` has returned may be too late for a job with ``retain=0``.

        Raises:
            UsageError, JobExists, QueueFull, StoreUnavailable, OutcomeUnknown: As `enqueue` does.
        """
        return await self._send_one(job, awaited=True)

    def _send_one(
        self, job: NewJob[Any], session: AnySession | None = None, *, awaited: bool = False
    ) -> Awaitable[JobHandle[Any]]:
        # Not a coroutine itself: one more for each job would be felt.
        job = self.middleware.inherit(job)
        if self.middleware.around_enqueue():
            return self.middleware.send(job, partial(self._send, session=session, awaited=awaited))
        return self._send(job, session=session, awaited=awaited)

    async def _send(
        self, job: NewJob[Any], *, session: AnySession | None = None, awaited: bool = False
    ) -> JobHandle[Any]:
        order = self._order(job)
        if awaited:
            order = msgspec.structs.replace(order, awaited=True)
        try:
            if session is None:
                placed = await (self._ready() or await self.queue()).enqueue(order)
            else:
                placed = await (await self.promises()).enqueue(order, session=session)
        except OutcomeUnknown as error:
            if job.id is not None:
                raise
            # Without it, the same call would make another job beside the one that may be there.
            msg = f"{error}, with id={order.key.id!r}, which it was given"
            raise OutcomeUnknown(msg) from error
        if self.hooks.meter is not None:
            self.hooks.meter.enqueued(placed.key.topic, placed.word)
        return JobHandle(self, placed.key, placed, job.reader)

    async def enqueue_many(
        self, jobs: Iterable[NewJob[R]], *, session: AnySession | None = None
    ) -> list[JobHandle[R] | DulyError]:
        """
        Promise any number of jobs; one outcome for each, in their order.  A wrong one is an outcome, too.

        *jobs* may be made on the way: they are taken as they are sent, a few hundred at a time.
        With a *session* they are part of its transaction, see `enqueue`.
        """
        checked_jobs(jobs)
        if CURRENT.get(None) is not None:
            jobs = map(self._inherit, jobs)
        if self.middleware.around_enqueue():
            return await self._send_many_through(jobs, session)
        outcomes: list[Any] = []
        positions: list[int] = []

        def orders() -> Iterator[Order]:
            # One at a time, so that the next ones are made while the server works on those before.
            for job in jobs:
                try:
                    order = self._order(job)
                except DulyError as error:
                    outcomes.append(error)
                except Exception as error:  # noqa: BLE001  # whatever is wrong with one, the others are sent
                    refusal = UsageError(f"{job.topic}: cannot be sent: {type(error).__name__}: {error}")
                    refusal.__cause__ = error
                    outcomes.append(refusal)
                else:
                    positions.append(len(outcomes))
                    outcomes.append(job.reader)
                    yield order

        if session is None:
            answers = await (await self.queue()).enqueue_many(orders())
        else:
            answers = await (await self.promises()).enqueue_many(orders(), session=session)
        for position, answer in zip(positions, answers, strict=True):
            outcomes[position] = (
                answer
                if isinstance(answer, DulyError)
                else JobHandle(self, answer.key, answer, outcomes[position])
            )
        if self.hooks.meter is not None:
            sent = Counter(
                (answer.key.topic, answer.word) for answer in answers if not isinstance(answer, DulyError)
            )
            for (topic, word), count in sent.items():
                self.hooks.meter.enqueued(topic, word, count)
        return outcomes

    async def _send_many_through(
        self, jobs: Iterable[NewJob[Any]], session: AnySession | None
    ) -> list[JobHandle[Any] | DulyError]:
        """
        Send each job through the middleware, many at once: they leave together all the same.
        """
        outcomes: list[JobHandle[Any] | DulyError] = []
        if session is not None:
            # A session does one thing at a time.
            return [await self._send_through(job, session) for job in jobs]
        ahead = iter(jobs)
        while batch := list(islice(ahead, BATCH)):
            outcomes += await asyncio.gather(*(self._send_through(job) for job in batch))
        return outcomes

    async def _send_through(
        self, job: NewJob[Any], session: AnySession | None = None
    ) -> JobHandle[Any] | DulyError:
        if not isinstance(job, NewJob):
            return no_job(job)
        try:
            return await self.middleware.send(job, partial(self._send, session=session))
        except DulyError as error:
            return error
        except Exception as error:  # noqa: BLE001  # whatever it was refused with, the others are sent
            refusal = UsageError(f"{job.topic}: refused by middleware: {type(error).__name__}: {error}")
            refusal.__cause__ = error
            return refusal

    def _inherit(self, job: NewJob[Any]) -> NewJob[Any]:
        return self.middleware.inherit(job) if isinstance(job, NewJob) else job

    def _order(self, job: NewJob[Any]) -> Order:
        if not isinstance(job, NewJob):
            raise no_job(job)
        try:
            handler = self.handlers.get(job.topic)
            if handler is None:
                return job.order(self.handlers.limits)
            if job.max_crashes is None and handler.max_crashes != MAX_CRASHES:
                job = job.options(max_crashes=handler.max_crashes)
            return job.order(self.handlers.limits, topic=handler.topic)
        except RecursionError:
            raise UsageError(
                f"{job.topic}: an option is nested more deeply than this process can read: make it flatter"
            ) from None

    @overload
    def job(self, topic: Handler[..., R], id_: str) -> JobHandle[R]: ...

    @overload
    def job(self, topic: str, id_: str) -> JobHandle[Any]: ...

    def job(self, topic: Handler[..., Any] | str, id_: str) -> JobHandle[Any]:
        """
        A handle on a job that was sent earlier, maybe by somebody else; of a handler, or of a topic by name.
        """
        name, reader = (topic.topic, topic.reader) if isinstance(topic, Handler) else (topic, None)
        return JobHandle(self, JobKey(check_topic(name), check_id(id_)), reader=reader)

    def replies(self, name: str, *, wait: Seconds | None = None) -> Replies:
        """
        What becomes of jobs that were sent with ``reply_to=name``: ``async for reply in app.replies(name)``.

        A reply is acked when the loop asks for the next one; `Reply.ack` does it earlier.  One that was not
        acked comes again after 30 s.  Without *wait* it goes on for ever, else until none came for so long.

        Raises:
            UsageError: No queue can be called so.
        """
        return Replies(
            self.reply_queue, check_topic(name, "reply queue"), parse_timeout(wait, "wait"), self.read_result
        )

    async def reply_queue(self) -> StoreReplies | RemoteReplies:
        """
        Where replies are taken and acked, a call for each.
        """
        await self.queue()  # refuses what does not fit, and has a queue compared with its record
        waiters = await self.waiters()
        if isinstance(waiters, Waiters):
            # Also with a record: replies are the server's alone.
            return StoreReplies(await self.store(), waiters, self._resolve)
        return RemoteReplies(waiters.link)
