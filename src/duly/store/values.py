"""
What the store is asked with, and what it answers with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from duly import defaults

if TYPE_CHECKING:
    from duly.events import Offset
    from duly.job import JobKey, JobState, Lease, Order

Ending = Literal["ack", "retry", "bury", "release"]
Thawed = Literal["created", "kept", "cancelled", "moved"]

PER_CALL = 128  #: jobs in one promote, claim or finish: about 2 ms of the server's time
CLAIM_BYTES = 1024 * 1024  #: of jobs or replies that one call leases


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """
    How long and how much of ended jobs is kept.  Bytes are for the namespace, not for each shard.
    """

    done_ms: int = defaults.KEEP_SUCCEEDED_MS
    dead_ms: int = defaults.KEEP_DEAD_MS
    done_bytes: int = defaults.KEEP_SUCCEEDED_BYTES
    dead_bytes: int = defaults.KEEP_DEAD_BYTES


class Want(NamedTuple):
    """
    What a worker can take of one topic.
    """

    topic: str
    free: int
    ttr_ms: int
    processes: int | None = None  #: for jobs that have to run isolated; None: they run alone on the worker


class Look(NamedTuple):
    """
    What a promote or claim saw of its shard.
    """

    now_ms: int
    moved: int
    next_due_ms: int | None
    next_lease_ms: int | None
    rank: int  #: of the asking timer: 0 leads, 1 and 2 stand by, 3 only scans
    peers: int  #: other timers that hold a slot, a follower among them: other processes that work
    unnamed: tuple[str, ...] = ()  #: topics with due jobs whose keys the call did not name
    more: bool = False  #: topics that it named have due jobs still
    rewoken: tuple[str, ...] = ()  #: topics with ready jobs that nobody had come for
    foreign: bool = False  #: what is due next is of a topic that the call did not name
    look_ms: int | None = None  #: when the worker that claimed should look by itself for what falls due
    places: dict[str, int] | None = None  #: of that worker among those that do, by topic
    micros: int = 0  #: beyond now_ms


class Claimed(NamedTuple):
    """
    Leases, and what the claim saw besides.
    """

    leases: list[Lease]
    look: Look
    open_s: float | None = None  #: in how many seconds to ask again for what was left to others
    room: bool = False  #: the worker should end what it runs, so that a job can run isolated
    rest: tuple[str, ...] = ()  #: topics that a broad claim named and that have more


class Recovered(NamedTuple):
    """
    What a recover did.
    """

    now_ms: int
    recovered: int
    buried: int
    next_lease_ms: int | None


class Promise(NamedTuple):
    """
    A job as its row in the record has it.
    """

    order: Order  #: with its due_ms
    revision: int
    request: bytes  #: of the call that made the revision
    attempts: int = 0
    crashes: int = 0
    cancelled: bool = False


class Held(NamedTuple):
    """
    How a job stood when it was to be held.
    """

    key: JobKey
    waits: bool  #: until it is let go; False: it runs or has ended, or is of another revision
    revision: int
    due_ms: int
    state: JobState


class Hydrated(NamedTuple):
    """
    What became of a promise: whose revision stands in the store now.
    """

    key: JobKey
    word: Literal["created", "replaced", "kept"]
    revision: int
    state: JobState
    upto: Upto | None  #: the shard's events when it was told


class Upto(NamedTuple):
    """
    How far the events of a shard had come.
    """

    shard: int
    offset: Offset


class Life(NamedTuple):
    """
    What a shard says of its server: which life it is in, and what was approved of it.
    """

    name: str  #: another one after a restart, a promotion, or once the namespace was made anew
    now_ms: int  #: by the clock of the namespace
    server_ms: int  #: by the server's own
    until_ms: int | None  #: when its approval ends, None where none counts
    record_id: str  #: the record that it belongs to, empty if it knows of none
    generation: int


class Finish(NamedTuple):
    """
    How one run ended: the arguments that ack, retry and bury share, then their own.
    """

    lease: Lease
    lateness_ms: int
    own: tuple[Any, ...]
