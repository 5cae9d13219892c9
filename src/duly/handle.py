"""
A handle on a job that was sent: ask about it, move it, wait for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from duly.codec import decode
from duly.documents import result_gone
from duly.durations import parse_duration, parse_timeout
from duly.errors import JobCancelled, JobFailed, JobNotFound, ResultGone, UsageError
from duly.job import Job, JobKey, JobState, Placed, moment
from duly.options import due_at_ms
from duly.timeouts import not_ended
from duly.tracebacks import short_tracebacks

if TYPE_CHECKING:
    from datetime import datetime

    from duly.app.connecting import Connecting
    from duly.durations import Seconds
    from duly.job import Accepted
    from duly.newjob import ResultReader
    from duly.record.sessions import AnySession

R_co = TypeVar("R_co", covariant=True)


class KnownJob(Generic[R_co]):
    """
    A job of which the identity is known, and what a handle on it tells without asking.
    """

    def __init__(self, key: JobKey, placed: Placed | None = None, reader: ResultReader | None = None) -> None:
        self.key = key
        self.placed = placed  #: what the store answered when it was sent
        self.reader = reader  #: of its result; None: the app's own handlers are asked

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"

    @property
    def topic(self) -> str:
        """
        Its topic.
        """
        return self.key.topic

    @property
    def id(self) -> str:
        """
        Its id, unique within the topic.
        """
        return self.key.id

    @property
    def created(self) -> bool:
        """
        Whether sending it made a new revision, rather than finding the job there already.
        """
        return self.placed is not None and self.placed.created

    @property
    def due_at(self) -> datetime | None:
        """
        When it was due as of when it was sent.
        """
        return moment(self.placed.due_ms) if self.placed else None


@short_tracebacks
class JobHandle(KnownJob[R_co]):
    """
    A handle on a job: its calls are awaited.
    """

    def __init__(
        self,
        app: Connecting,
        key: JobKey,
        placed: Placed | None = None,
        reader: ResultReader | None = None,
    ) -> None:
        # Without super(), which costs as much as all of it: there is one for every job that is sent.
        self.key, self.placed, self.reader, self._app = key, placed, reader, app

    async def get(self) -> Job:
        """
        The job as it is now.

        Raises:
            JobNotFound: It was pruned, or never was.
        """
        job = await (await self._app.views()).get(self.key)
        if job is None:
            raise self._not_found()
        return job

    async def cancel(
        self, *, revision: int | None = None, session: AnySession | None = None
    ) -> JobState | Accepted:
        """
        End it, also while it runs; the state that it is in now, which is another one if it had ended before.

        Where *revision* is said, it is ended if it is still at that one.
        "accepted" if it is not in the queue and may wait in its table of far-future jobs.
        With a *session*, once that is committed, see `Duly.enqueue`.

        Raises:
            Conflict: Another revision stands.
            JobNotFound: It was pruned, or never was.
            RecordUnavailable: It is cancelled if the queue has it, and its row follows.
        """
        if session is None:
            [state] = await (await self._app.queue()).cancel([self.key], revision=revision)
        else:
            record = await self._app.promises()
            [state] = await record.cancel([self.key], revision=revision, session=session)
        if state is None:
            raise self._not_found()
        return state

    async def reschedule(
        self,
        *,
        delay: Seconds | None = None,
        due_at: datetime | None = None,
        revision: int | None = None,
        session: AnySession | None = None,
    ) -> Placed:
        """
        Give it another due time, if it has not started, and where *revision* is said, is still at that one.

        The word is "accepted" if it is not in the queue and may wait in its table of far-future jobs.
        With a *session*, once that is committed; a run that has begun by then is stopped.

        Raises:
            UsageError: Say either *delay* or *due_at*.
            Conflict: It runs or has ended.
            JobNotFound: It was pruned, or never was.
        """
        if (delay is None) == (due_at is None):
            msg = "say either delay or due_at"
            raise UsageError(msg)
        delay_ms = None if delay is None else parse_duration(delay, "delay")
        due_ms = None if due_at is None else due_at_ms(due_at)
        try:
            if session is None:
                queue = await self._app.queue()
                return await queue.reschedule(self.key, delay_ms=delay_ms, due_ms=due_ms, revision=revision)
            record = await self._app.promises()
            return await record.reschedule(
                self.key, delay_ms=delay_ms, due_ms=due_ms, revision=revision, session=session
            )
        except JobNotFound:
            raise self._not_found() from None

    async def requeue(self, *, revision: int | None = None, session: AnySession | None = None) -> Placed:
        """
        Run it again now that it has ended, and where *revision* is said, is still at that one.

        With a *session*, once that is committed, see `Duly.enqueue`.

        Raises:
            Conflict: It has not ended, or another revision stands.
            JobNotFound: It was pruned, or never was.
        """
        if session is None:
            [answer] = await (await self._app.queue()).requeue([self.key], revision=revision)
        else:
            record = await self._app.promises()
            [answer] = await record.requeue([self.key], revision=revision, session=session)
        if isinstance(answer, JobNotFound):
            raise self._not_found()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def result(self, timeout: Seconds | None = None) -> R_co:  # part of the public surface
        """
        Wait until it has ended and return what its handler returned.

        Raises:
            TimeoutError: It has not ended within *timeout*; the message says where it waits, and for whom.
            JobFailed: It is dead.
            JobCancelled: It was cancelled or expired.
            ResultGone: It has succeeded, and its result was not kept: ``retain=0``, and nobody waited yet.
            Unreadable: Its result is not what the handler says it returns.
            JobNotFound: It was pruned, or never was.
        """
        within_s = parse_timeout(timeout)
        waiters = await self._app.waiters()
        try:
            async with asyncio.timeout(within_s):
                state, outcome, gone = await waiters.ended(self.key)
        except TimeoutError:
            raise TimeoutError(await not_ended(self._app, self.key, within_s or 0.0)) from None
        except JobNotFound:
            raise self._not_found() from None
        if gone:
            raise ResultGone(result_gone(self.key))
        if state is JobState.succeeded:
            result: R_co = self._app.read_result(self.topic, outcome, self.reader)
            return result
        document = decode(outcome) if outcome else None
        told = document if isinstance(document, dict) else {}
        said = "".join(f": {told[part]}" for part in ("type", "message") if told.get(part))
        if state is JobState.dead:
            raise JobFailed(f"{self.key} is dead{said}")
        raise JobCancelled(f"{self.key} was cancelled{said}")

    def _not_found(self) -> JobNotFound:
        why = "it was pruned, or never was"
        if self.placed is not None and self.placed.in_session:
            why = (
                "the session that it was sent with has not committed it yet, or was rolled back; "
                "if it was committed, it has ended and was pruned"
            )
        return JobNotFound(f"there is no job {self.key}: {why}")
