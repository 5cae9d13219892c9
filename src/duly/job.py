"""
The nouns of duly: a job to be, a job as it is, a lease on it.  Frozen values, no I/O.
"""

from __future__ import annotations

import functools
import re
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from duly.errors import UsageError

if TYPE_CHECKING:
    from duly.codec import Envelope

TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_is_topic = functools.lru_cache(maxsize=4_096)(TOPIC.fullmatch)  # asked of every job that is sent
RESERVED = "duly."  #: begins topics that are not for users
ID = re.compile(r"[A-Za-z0-9._~:@=+-]{1,200}")

PER_MS = 1_000  #: revisions, and numbers of stream entries: they are microseconds, of a whole ms and on

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Priority = Literal["high", "normal", "low"]
OnConflict = Literal["keep", "replace", "raise"]
#: The answer about a job that is not in the queue and may wait in a table of far-future jobs.
Accepted = Literal["accepted"]


class JobState(IntEnum):
    """
    Where a job stands; the numbers are those of its stored record.
    """

    scheduled = 0
    ready = 1
    running = 2
    succeeded = 3
    dead = 4
    cancelled = 5

    @property
    def ended(self) -> bool:
        """
        Whether nothing more happens to this revision of the job.
        """
        return self >= JobState.succeeded


class Lane(IntEnum):
    """
    The streams of a topic; the numbers are those of the stored record.

    Users choose among the first three.  A job with a callback waits in `callback`, from
    which only deliverers claim.  No record names the last two: any other job that crashed once
    waits in `suspect`, and one that crashed more often in `isolated`, to run by itself.
    """

    normal = 0
    high = 1
    low = 2
    callback = 3
    suspect = 4
    isolated = 5


class JobKey(NamedTuple):
    """
    Which job: ids are unique within a topic, not across.
    """

    topic: str
    id: str

    @property
    def member(self) -> str:
        """
        The name of the job inside its shard; a slash occurs in neither part.
        """
        return f"{self.topic}/{self.id}"

    def __str__(self) -> str:
        return self.member

    @classmethod
    def of(cls, member: bytes | str) -> JobKey:
        """
        Take a member apart again.
        """
        text = member.decode() if isinstance(member, bytes) else member
        topic, _, id_ = text.partition("/")
        return cls(topic, id_)


def check_topic(topic: str, what: str = "topic") -> str:
    """
    Return *topic* if it is a valid name, as queues of replies have them, too.

    Raises:
        UsageError: It is not.
    """
    if not isinstance(topic, str) or not _is_topic(topic):
        msg = (
            f"invalid {what} {topic!r}: use 1 to 100 of the characters A-Z a-z 0-9 . _ - "
            "and begin with a letter or a digit"
        )
        raise UsageError(msg)
    if topic.startswith(RESERVED):
        raise UsageError(f"invalid {what} {topic!r}: names that begin with {RESERVED} are duly's own")
    return topic


def check_id(id_: str) -> str:
    """
    Return *id_* if it is a valid job id.

    Raises:
        UsageError: It is not.
    """
    if not isinstance(id_, str) or not ID.fullmatch(id_) or id_ in (".", ".."):
        msg = (
            f"invalid job id {id_!r}: use 1 to 200 of the characters A-Z a-z 0-9 . _ ~ : @ = + - "
            "(and neither '.' nor '..')"
        )
        raise UsageError(msg)
    return id_


def shard_of(topic: str, id_: str, shards: int) -> int:
    """
    The shard of a job: by its identity, so that the same id always meets itself.
    """
    if shards == 1:
        return 0
    return zlib.crc32(f"{topic}\0{id_}".encode()) % shards


def moment(ms: int | None) -> datetime | None:
    """
    An aware UTC time from integer milliseconds; 0 and None mean never.
    """
    # Not from a float of seconds: centuries ahead, that is a part of a millisecond off.
    return _EPOCH + timedelta(milliseconds=ms) if ms else None


class Once(msgspec.Struct, frozen=True, gc=False):
    """
    Which call makes a job, for a sender that may repeat it later and from elsewhere: see `duly.idempotency`.
    """

    request: bytes  #: six bytes; a repeated call has the same, and finds what it made
    entry: str = ""  #: what is kept of the call has this name; empty for nothing
    digest: bytes = b""  #: of what it asks for
    keep_ms: int = 0  #: how long the entry stays
    since_ms: int = 0  #: when it was made the first time; 0 if this is the first time

    @property
    def seen(self) -> int:
        """
        The highest revision that a job can have had when the call was made the first time.
        """
        return (self.since_ms + 1) * PER_MS - 1 if self.since_ms else 2**62


# Without garbage collection for values that hold no others but bytes and text: a hundred thousand of them
# made the collector the busiest part of a bulk enqueue.
class Order(msgspec.Struct, frozen=True, gc=False):
    """
    A job as the store takes it: every option resolved, every byte encoded.
    """

    key: JobKey
    payload: bytes
    delay_ms: int | None = None  #: counted by the server's clock; excludes due_ms
    due_ms: int | None = None  #: absolute; None with delay_ms None means now
    lane: Lane = Lane.normal
    expires_ms: int = 0  #: never start later than this; 0 means no limit
    ttr_ms: int = 0  #: time to run; 0 means the handler's
    retain_s: int | None = None  #: how long to keep it once ended; None means the namespace's
    max_crashes: int = 0  #: 0 means the worker's default
    envelope: bytes = b""  #: of `duly.codec.Envelope`: reply_to, and what only clients read
    on_conflict: OnConflict = "keep"
    created_ms: int = 0  #: when it was accepted first; 0 means now
    awaited: bool = False  #: its sender waits for its end: its result is kept for a minute at least
    once: Once | None = None  #: None: nobody repeats the call but the connection itself


class Placed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """
    The store's answer to one enqueue, reschedule or requeue.
    """

    key: JobKey
    word: Literal["created", "kept", "replaced", "rescheduled", "requeued", "accepted"]
    revision: int
    due_ms: int
    state: JobState
    in_session: bool = False  #: of the caller: the job is there once that commits

    @property
    def created(self) -> bool:
        """
        Whether this call made the revision that now stands.
        """
        return self.word not in ("kept", "accepted")


class Lease(msgspec.Struct, frozen=True, gc=False):
    """
    The right to run one job, as long as its token is the newest.
    """

    key: JobKey
    shard: int
    lane: Lane  #: whose stream holds the entry
    revision: int
    token: int
    nonce: bytes
    attempt: int
    crashes: int
    due_ms: int
    claimed_ms: int  #: by the server's clock
    expires_ms: int  #: when the lease runs out unless extended
    ttr_ms: int
    floor_ms: int  #: lateness counts from here: due, or when a pause ended
    payload: bytes
    envelope: bytes = b""
    half: int = 0  #: of the group that crashed together, if the job is a suspect
    record: bytes = b""  #: of the job, as it was claimed; empty where nobody reads it

    @property
    def fence_bytes(self) -> bytes:
        """
        The token as it travels: counter and nonce.
        """
        return self.token.to_bytes(8, "big") + self.nonce

    @property
    def fence(self) -> str:
        """
        The token as text: grows with every claim of the job, so handlers can fence their own writes.
        """
        return f"{self.token:016d}-{self.nonce.hex()}"


class Ended(NamedTuple):
    """
    What a waiter is told of a job that has ended.
    """

    state: JobState
    outcome: bytes  #: the result of a succeeded job, the error document of others
    result_gone: bool = False  #: it has succeeded, and its result was not kept


@dataclass(frozen=True, slots=True)
class Job:
    """
    A job as it is now.
    """

    topic: str
    id: str
    state: JobState
    revision: int
    priority: Priority
    attempts: int  #: runs that were counted
    crashes: int
    payload: bytes
    due_ms: int
    scheduled_ms: int = 0  #: when it was due first
    created_ms: int = 0  #: when it was accepted first
    updated_ms: int = 0  #: when it changed its state or its due time last
    started_ms: int = 0
    ended_ms: int = 0
    lateness_ms: int | None = None
    worker: str = ""
    lease_ms: int = 0  #: when the lease of a running job runs out
    outcome: bytes = b""  #: the result of a succeeded job, the error document of others
    result_gone: bool = False  #: it has succeeded, and its result was not kept
    progress: bytes = b""
    ttr_ms: int = 0
    expires_ms: int = 0
    retain_s: int | None = None  #: how long it is kept once it has ended; None means the namespace's
    max_attempts: int | None = None  #: how many runs it has at most: by itself, its handler or the settings
    envelope: Envelope | None = field(default=None, repr=False)

    @property
    def key(self) -> JobKey:
        """
        Its identity.
        """
        return JobKey(self.topic, self.id)

    @property
    def due_at(self) -> datetime | None:
        """
        When its next (or last) run is due.
        """
        return moment(self.due_ms)

    @property
    def scheduled_for(self) -> datetime | None:
        """
        When its first run was due, as it was sent or rescheduled; retries and snoozes leave it.
        """
        return moment(self.scheduled_ms)

    @property
    def created_at(self) -> datetime | None:
        """
        When its id was accepted first; a replacement, a new due time and a requeue leave it.
        """
        return moment(self.created_ms)

    @property
    def updated_at(self) -> datetime | None:
        """
        When it changed its state or its due time last; heartbeats and progress leave it.
        """
        return moment(self.updated_ms)

    @property
    def expires(self) -> datetime | None:
        """
        When it must not start any more; None if that is not said.
        """
        return moment(self.expires_ms)

    @property
    def ttr(self) -> timedelta | None:
        """
        How long one run may take; None for as long as its handler says.
        """
        return timedelta(milliseconds=self.ttr_ms) if self.ttr_ms else None

    @property
    def retain(self) -> timedelta | None:
        """
        How long it is kept once it has ended; None for as long as the namespace says.
        """
        return None if self.retain_s is None else timedelta(seconds=self.retain_s)

    @property
    def callback(self) -> str | None:
        """
        The URL that it is sent to; None if a handler runs it.
        """
        return self.envelope.callback if self.envelope else None

    @property
    def backoff(self) -> dict[str, Any] | None:
        """
        How long it waits between attempts, in the words of JSON; None for as long as its handler says.
        """
        return self.envelope.backoff if self.envelope else None

    @property
    def started_at(self) -> datetime | None:
        """
        When its last run was claimed.
        """
        return moment(self.started_ms)

    @property
    def finished_at(self) -> datetime | None:
        """
        When it ended.
        """
        return moment(self.ended_ms)
