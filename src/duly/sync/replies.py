"""
The response queue, blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duly.backoff import Seconds
    from duly.job import Job, JobState
    from duly.replies import Reply
    from duly.sync.twin import SyncDuly


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


def each_reply(twin: SyncDuly, name: str, wait: Seconds | None) -> Iterator[SyncReply]:
    """
    Replies as they come, each acked when the next is asked for.
    """
    source = twin.here().replies(name, wait=wait)

    def go_on() -> Iterator[SyncReply]:
        while (reply := twin.run(source.next())) is not None:
            yield SyncReply(twin, reply)

    return go_on()
