"""
What can go wrong, and what to do about it.

DulyError
├── UsageError         fix the calling code; nothing was sent
├── JobExists          an open or retained job has this id (``on_conflict="raise"``)
├── JobNotFound        the job ended and was pruned, or never was
├── Conflict           the job is in a state that this verb does not apply to
├── LeaseLost          stop: another worker may be running this job
├── QueueFull          the topic is at its backlog limit; nothing was stored
├── JobFailed          ``result()`` of a job that ended dead
├── JobCancelled       ``result()`` of a job that ended cancelled
├── LayoutMismatch     this client and this namespace do not fit each other
├── ServerUnsuitable   the server would lose or delay jobs; the message says how to mend it
├── StoreUnavailable   refused or never sent; nothing was changed
├── RecordUnavailable  the record refused or was not reached; nothing was changed, or see `cancel`
└── OutcomeUnknown     the reply was lost; repeating the same call is safe
"""

from __future__ import annotations


class DulyError(Exception):
    """
    The base of everything that duly raises on purpose.
    """


class UsageError(DulyError, ValueError):
    """
    The call itself is wrong: fix the calling code.  Nothing was sent.
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


class LayoutMismatch(DulyError):
    """
    This client and this namespace do not fit each other (layout version, shard count, clock).
    """


class ServerUnsuitable(DulyError):
    """
    The server would lose or delay jobs; the message says how to mend it.
    """


class StoreUnavailable(DulyError):
    """
    The store refused the call or was never reached.  Nothing was changed.
    """


class RecordUnavailable(StoreUnavailable):
    """
    The record refused the call or was never reached.  Nothing was changed, but that a cancel has ended what
    Redis has of the job: the record is told of it later.
    """


class OutcomeUnknown(DulyError):
    """
    The reply was lost, also after replays.  Repeating the same call is safe.
    """
