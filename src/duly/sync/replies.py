"""
The response queue, blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import Self

    from duly.handlers import Handler
    from duly.job import Job, JobState
    from duly.replies import Replies, Reply
    from duly.sync.twin import SyncDuly

R = TypeVar("R")


class SyncReply:
    """
    The blocking twin of `Reply`.
    """

    def __init__(self, twin: SyncDuly, reply: Reply) -> None:
        self._twin = twin
        self._reply = reply

    def __repr__(self) -> str:
        return f"<SyncReply {self.id} of {self.job.key} to {self.name}>"

    @property
    def id(self) -> str:
        """
        Of the reply; a job that is run again gives another one.
        """
        return self._reply.id

    @property
    def name(self) -> str:
        """
        Of the queue.
        """
        return self._reply.name

    @property
    def job(self) -> Job:
        """
        The job as it was when it ended, without its payload.
        """
        return self._reply.job

    @property
    def state(self) -> JobState:
        """
        How it ended: succeeded, dead or cancelled.
        """
        return self._reply.state

    @property
    def result(self) -> Any:
        """
        What the handler returned; None if the job has not succeeded.
        """
        return self._reply.result

    def result_of(self, handler: Handler[..., R]) -> R | None:
        """
        What *handler* returned, as it says; see `Reply.result_of`.
        """
        return self._reply.result_of(handler)

    @property
    def error(self) -> dict[str, Any] | None:
        """
        Why it is dead or cancelled; None if it has succeeded.
        """
        return self._reply.error

    def ack(self) -> None:
        """
        Forget it: it has been dealt with; see `Reply.ack`.
        """
        self._twin.run(self._reply.ack())


class SyncReplies:
    """
    The blocking twin of `Replies`: ``for reply in app.sync.replies(name)``.
    """

    def __init__(self, twin: SyncDuly, replies: Replies) -> None:
        self._twin = twin
        self._replies = replies

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncReply:
        reply = self.next()
        if reply is None:
            raise StopIteration
        return reply

    def next(self) -> SyncReply | None:
        """
        Ack the reply before and return the next one; None where none came in the time that was said.
        """
        reply = self._twin.run(self._replies.next())
        return None if reply is None else SyncReply(self._twin, reply)
