"""
What can go wrong, and what to do about it.

DulyError
├── UsageError         fix the calling code; nothing was sent
├── Unsupported        this way to the queue has no such verb; the message says which way has it
├── JobExists          an open or retained job has this id (``on_conflict="raise"``)
├── JobNotFound        the job ended and was pruned, or never was
├── Conflict           the job is in a state that this verb does not apply to
├── LeaseLost          stop: another worker may be running this job
├── QueueFull          the topic is at its backlog limit; nothing was stored
├── JobFailed          ``result()`` of a job that ended dead
├── JobCancelled       ``result()`` of a job that ended cancelled
├── ResultGone         ``result()`` of a job whose result was not kept: send it with a longer ``retain``
├── LayoutMismatch     this client and this namespace do not fit each other
├── ServerUnsuitable   the server would lose jobs, or refuses what duly needs; the message says how to mend it
├── EventsLost         a reader of events has missed some; the message says which
├── ServiceFault       the HTTP service failed, and fails again if asked again; its log says why
├── StoreUnavailable   not reached, or refused for now; nothing was changed
├── RecordUnavailable  the record was not reached, or refused for now; nothing was changed, or see `cancel`
└── OutcomeUnknown     the reply was lost; repeating the same call is safe
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.events import Offset


class DulyError(Exception):
    """
    The base of everything that duly raises on purpose.
    """


class UsageError(DulyError, ValueError):
    """
    The call itself is wrong: fix the calling code.  Nothing was sent.
    """


class Unsupported(UsageError):
    """
    This way to the queue cannot do what was asked; the message says which way can.  Nothing was sent.
    """


class JobExists(DulyError):
    """
    A job with this id is open or still retained, and the caller asked to be told.
    """


class JobNotFound(DulyError, LookupError):
    """
    The job ended and was pruned, or never was.
    """


class Conflict(DulyError):
    """
    The job is in a state that this verb does not apply to.
    """


class LeaseLost(DulyError):
    """
    The lease ran out, or the job was cancelled or replaced: stop working on it.
    """


class QueueFull(DulyError):
    """
    The topic is at its backlog limit.  Nothing was stored; try later.
    """


class JobFailed(DulyError):
    """
    The job whose result was awaited is dead.
    """


class JobCancelled(DulyError):
    """
    The job whose result was awaited was cancelled.
    """


class ResultGone(DulyError, LookupError):
    """
    The job has succeeded, and its result was not kept: nobody was waiting for it when the job ended, and
    ``retain`` was 0.
    """


class LayoutMismatch(DulyError):
    """
    This client and this namespace do not fit each other (layout version, shard count, clock).
    """


class ServerUnsuitable(DulyError):
    """
    The server would lose or delay jobs, or refuses what duly needs: a wrong password, a missing right, a key
    that another program has overwritten.  The same call fails again until somebody mends it; the message says
    how.
    """


class EventsLost(DulyError):
    """
    Events between an offset and what is there now are gone, or the server was rolled back.
    """

    def __init__(self, shard: int, after: Offset | None, first: int | None, why: str) -> None:
        self.since = after.counter + 1 if after else 1  #: the number of the first script call that is gone
        self.until = first - 1 if first is not None else None  #: of the last one; None where nobody knows
        until = "?" if self.until is None else self.until
        super().__init__(f"events {self.since} to {until} of shard {shard} are lost: {why}")
        self.shard, self.after, self.first, self.why = shard, after, first, why


class ServiceFault(DulyError):
    """
    The HTTP service failed on this call, and its log says why at the id that the message names.  Whether
    the call was done is not known; sent again, it fails again.
    """


class StoreUnavailable(DulyError):
    """
    The store was not reached, or refused the call for now: it is loading, full, or has no replica.  Nothing
    was changed; the same call may succeed later.
    """


class RecordUnavailable(StoreUnavailable):
    """
    The record was not reached, or refused the call for now.  Nothing was changed, but that a cancel has ended
    what Redis has of the job: the record is told of it later.
    """


class OutcomeUnknown(DulyError):
    """
    The reply was lost, also after replays.  Repeating the same call is safe.
    """


#: About the server as a whole, and not about the one job that was asked for.
SERVER_ERRORS = (StoreUnavailable, OutcomeUnknown, ServerUnsuitable)
