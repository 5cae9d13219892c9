"""
What a handler may ask about the job it is running.
"""

from __future__ import annotations

import os
import threading
import time
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from duly.codec import decode_envelope, encode
from duly.errors import Unsupported, UsageError
from duly.job import moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from datetime import datetime

    from duly.job import Lease
    from duly.record.transaction import JobTransaction

    #: Stores progress.  On the event loop it returns what to await; in a thread it has handed the value over.
    Report: TypeAlias = Callable[[object], Awaitable[None] | None]
    #: Prepares a transaction, or says why there can be none.
    Transact: TypeAlias = Callable[["CurrentJob"], JobTransaction]


class _Done:
    """
    An awaitable that has nothing left to do.
    """

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()
_making_event = threading.Lock()


def _renew_lock() -> None:
    # Whoever held it when the process was forked does not exist in the child.
    global _making_event  # noqa: PLW0603  # it guards all jobs of the process
    _making_event = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class Committed(NamedTuple):
    """
    The success of a job whose ending was committed by its handler.
    """

    value: object  #: the result as it was given
    result: bytes  #: as it is stored


def no_transaction(job: CurrentJob) -> JobTransaction:
    """
    Refuse a transaction where no worker runs the job.

    Raises:
        Unsupported: Always.
    """
    raise Unsupported(f"{job.topic}/{job.id} is not run by a worker that has a record: no transaction")


class CurrentJob:
    """
    The job that is running here.

    Made for every run, so it only keeps references; the rest is worked out when asked for.
    """

    __slots__ = (
        "_cancelled",
        "_deadline",
        "_event",
        "_lease",
        "_report",
        "_transact",
        "committed",
        "context",
        "fenced",
        "in_transaction",
    )

    def __init__(
        self,
        lease: Lease,
        context: dict[str, Any],
        deadline: float,
        report: Report,
        transact: Transact = no_transaction,
    ) -> None:
        self._lease = lease
        self.context = context  #: what the sender let travel with the job
        self._deadline = deadline
        self._report = report
        self._transact = transact
        self._cancelled = False
        self.in_transaction = False
        self.committed: Committed | None = None  #: the job has ended with a transaction of its handler
        self.fenced = False  #: the record has said that this run does not count
        self._event: threading.Event | None = None

    def __repr__(self) -> str:
        return f"<CurrentJob {self._lease.key} attempt={self.attempt}>"

    @property
    def id(self) -> str:
        """
        Its id, unique within the topic.
        """
        return self._lease.key.id

    @property
    def topic(self) -> str:
        """
        Its topic.
        """
        return self._lease.key.topic

    @property
    def member(self) -> str:
        """
        Its topic and id, as one text.
        """
        return self._lease.key.member

    @property
    def attempt(self) -> int:
        """
        Which attempt this is, counted from 1.
        """
        return self._lease.attempt

    @property
    def crashes(self) -> int:
        """
        How many earlier runs ended without an answer.
        """
        return self._lease.crashes

    @property
    def revision(self) -> int:
        """
        Which revision of the job this is.
        """
        return self._lease.revision

    @property
    def token(self) -> str:
        """
        The fence: text that grows with every claim, to guard writes of the handler's own.
        """
        return self._lease.fence

    @property
    def callback(self) -> str | None:
        """
        The URL that the job itself is to be delivered to, if any.
        """
        return decode_envelope(self._lease.envelope).callback

    @property
    def claimed_ms(self) -> int:
        """
        When this run was claimed, in milliseconds since 1970, by the server's clock.
        """
        return self._lease.claimed_ms

    @property
    def due_ms(self) -> int:
        """
        When this run was due, in milliseconds since 1970.
        """
        return self._lease.due_ms

    @property
    def due_at(self) -> datetime | None:
        """
        When this run was due.
        """
        return moment(self._lease.due_ms)

    @property
    def cancelled(self) -> bool:
        """
        Whether to stop: cancelled, replaced, over its time to run, or the lease was lost.
        """
        return self._cancelled

    @property
    def cancelled_event(self) -> threading.Event:
        """
        The same as an event, for threads that would rather wait than ask again and again.
        """
        with _making_event:
            if self._event is None:
                self._event = threading.Event()
        if self._cancelled:
            self._event.set()
        return self._event

    def cancel(self) -> None:
        """
        Tell the handler to stop.  For the worker, from any thread.
        """
        self._cancelled = True  # first, so that an event made meanwhile is set by its maker
        event = self._event
        if event is not None:
            event.set()

    def log_fields(self) -> dict[str, Any]:
        """
        Which run this is, for the ``extra=`` of a log line.
        """
        return {"topic": self.topic, "id": self.id, "attempt": self.attempt, "token": self.token}

    def remaining(self) -> float:
        """
        Return how many seconds of the time to run are left, at least 0.
        """
        return max(0.0, self._deadline - time.monotonic())

    def progress(self, value: object) -> Awaitable[None]:
        """
        Store how far the job has come, for whoever looks at it.

        On the event loop, await it.  In a thread or a process a plain call is enough: it returns once the
        value was handed over.

        Raises:
            LeaseLost: The job is no longer this worker's.
            UsageError: The value has no form in JSON, or is too large.
        """
        return self._report(value) or _DONE

    def transaction(self) -> JobTransaction:
        """
        Begin a transaction on the record's database that ends the job, as succeeded, when it is committed.

        ``async with`` in an async handler, ``with`` in a plain function; either gives a session.  What is
        done in the session and the ending of the job are committed together when the block ends, by the
        first run of the job to get there.

        Raises:
            Unsupported: The worker has no record, or the handler runs in a process of its own.
            LeaseLost: The run is over.
        """
        return self._transact(self)


CURRENT: ContextVar[CurrentJob] = ContextVar("duly.current_job")  #: set by the worker around each run


def current_job() -> CurrentJob:
    """
    Return the job that is running here.

    Raises:
        UsageError: None is: the call is not inside a handler.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise UsageError("current_job() is only known inside a handler that a worker runs") from None


def fits(context: dict[str, Any], limit: int) -> bool:
    """
    Return whether a job can have this context, of at most *limit* bytes.
    """
    try:
        encode(context, what="context", limit=limit)
    except UsageError:
        return False
    return True


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def current_context() -> Mapping[str, Any]:
    """
    Return what the sender let travel with the job that is running here; nothing outside of a handler.

    For code below a handler that may also be called elsewhere.
    """
    job = CURRENT.get(None)
    return _NOTHING if job is None else MappingProxyType(job.context)
