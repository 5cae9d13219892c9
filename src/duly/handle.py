"""
A handle on a job that was sent: ask about it, move it, wait for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from duly.backoff import wait_ms
from duly.codec import decode
from duly.errors import JobCancelled, JobFailed, JobNotFound, UsageError
from duly.job import Job, JobKey, JobState, Placed, moment
from duly.options import due_at_ms

if TYPE_CHECKING:
    from datetime import datetime

    from duly.app.connecting import Connecting
    from duly.backoff import Seconds
    from duly.job import Accepted
    from duly.record.sessions import AnySession

R_co = TypeVar("R_co", covariant=True)


class JobHandle(Generic[R_co]):
    """
    A job of which the identity is known.
    """

    def __init__(self, app: Connecting, key: JobKey, placed: Placed | None = None) -> None:
        self._app = app
        self.key = key
        self.placed = placed  #: what the store answered when it was sent

    def __repr__(self) -> str:
        return f"<JobHandle {self.key}>"

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

    async def get(self) -> Job:
        """
        The job as it is now.

        Raises:
            JobNotFound: It was pruned, or never was.
        """
        job = await (await self._app.views()).get(self.key)
        if job is None:
            msg = f"there is no job {self.key}: it was pruned, or never was"
            raise JobNotFound(msg)
        return job

    async def cancel(self, *, session: AnySession | None = None) -> JobState | Accepted:
        """
        End it, also while it runs; the state that it is in now, which is another one if it had ended before.

        "accepted" if it is not in the queue and may wait in its table of far-future jobs.
        With a *session*, once that is committed, see `Duly.enqueue`.

        Raises:
            JobNotFound: It was pruned, or never was.
            RecordUnavailable: It is cancelled if the queue has it, and its row follows.
        """
        if session is None:
            [state] = await (await self._app.queue()).cancel([self.key])
        else:
            [state] = await (await self._app.promises()).cancel([self.key], session=session)
        if state is None:
            msg = f"there is no job {self.key}: it was pruned, or never was"
            raise JobNotFound(msg)
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
        delay_ms = None if delay is None else wait_ms(delay)
        due_ms = None if due_at is None else due_at_ms(due_at)
        if session is None:
            queue = await self._app.queue()
            return await queue.reschedule(self.key, delay_ms=delay_ms, due_ms=due_ms, revision=revision)
        record = await self._app.promises()
        return await record.reschedule(
            self.key, delay_ms=delay_ms, due_ms=due_ms, revision=revision, session=session
        )

    async def requeue(self, *, session: AnySession | None = None) -> Placed:
        """
        Run it again now that it has ended.

        With a *session*, once that is committed, see `Duly.enqueue`.

        Raises:
            Conflict: It has not ended.
            JobNotFound: It was pruned, or never was.
        """
        if session is None:
            [answer] = await (await self._app.queue()).requeue([self.key])
        else:
            [answer] = await (await self._app.promises()).requeue([self.key], session=session)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def result(self, timeout: float | None = None) -> R_co:  # part of the public surface
        """
        Wait until it has ended and return what its handler returned.

        Raises:
            TimeoutError: It has not ended within *timeout* seconds.
            JobFailed: It is dead.
            JobCancelled: It was cancelled or expired.
            JobNotFound: It was pruned, or never was.
        """
        waiters = await self._app.waiters()
        try:
            async with asyncio.timeout(timeout):
                state, outcome = await waiters.ended(self.key)
        except TimeoutError:
            msg = f"{self.key} has not ended within {timeout} s: is a worker running that takes {self.topic}?"
            raise TimeoutError(msg) from None
        document = decode(outcome) if outcome else None
        if state is JobState.succeeded:
            result: R_co = self._app.read_result(self.topic, document)
            return result
        told = document if isinstance(document, dict) else {}
        said = ": ".join(str(told[part]) for part in ("type", "message") if told.get(part))
        if state is JobState.dead:
            raise JobFailed(f"{self.key} is dead: {said}")
        raise JobCancelled(f"{self.key} was cancelled: {said}")
