"""
What happened: one frozen value per thing that a script did to a job.

An event is a verb and the head of the job's record as it stood afterwards.
The log line, the metric, the feed and the Spark schema derive from these fields.
"""

from __future__ import annotations

from enum import StrEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duly.job import JobKey, JobState
from duly.records import UNKNOWN, head_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duly.records import Head


class Verb(StrEnum):
    """
    What was done, in the words of the scripts.
    """

    enqueued = "enqueued"
    replaced = "replaced"
    promoted = "promoted"
    claimed = "claimed"
    acked = "acked"
    retried = "retried"
    buried = "buried"
    released = "released"
    recovered = "recovered"
    cancelled = "cancelled"
    rescheduled = "rescheduled"  #: with a reason, held or let go, only while its row in a record changes
    requeued = "requeued"
    pruned = "pruned"
    hydrated = "hydrated"  #: taken over from the record: new, or in place of a lower revision
    forgotten = "forgotten"  #: let go because the record says that it is over
    paused = "paused"  #: of a topic: the id is empty
    resumed = "resumed"  #: of a topic: the id is empty
    mended = "mended"  #: by the auditor; the reason says what disagreed
    quarantined = "quarantined"  #: put aside because its record cannot be read; of it only the name is known


#: How the `about` of an entry begins: when, how many rows and bytes up to and with it, the nonce of its call.
ABOUT = Struct(">QQQ8s")

#: The run goes on, or ended without being counted: its number is one more than what was counted.
_OPEN_RUN = frozenset({Verb.claimed, Verb.released, Verb.recovered})
#: A run ended here: how long it took is known.
_END_OF_RUN = frozenset({Verb.acked, Verb.retried, Verb.buried, Verb.released, Verb.recovered})


class Event(msgspec.Struct, frozen=True):
    """
    One thing that happened to one job.
    """

    shard: int
    epoch: str
    counter: int  #: of the entry, dense within a shard and an epoch
    row: int  #: within the entry
    at_ms: int  #: by the server's clock
    verb: Verb
    topic: str
    id: str
    revision: int
    state: JobState
    priority: str
    attempt: int
    crashes: int
    due_ms: int  #: of the next run for what is scheduled again, else of this one
    lateness_ms: int | None  #: of the last run that told
    run_ms: int | None  #: how long the run took that ended here
    worker: str  #: who claimed it, for `claimed`
    reason: str


class Offset(NamedTuple):
    """
    A place in the events of one shard: the last entry that was read.
    """

    epoch: str
    counter: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.counter} {self.epoch} {self.nonce}"

    @classmethod
    def of(cls, text: str) -> Offset:
        """
        Read an offset that was written as text.
        """
        counter, epoch, nonce = text.split(" ")
        return cls(epoch, int(counter), nonce)


def _heads(data: bytes) -> Iterator[tuple[Head, int]]:
    """
    The heads of an entry, one after the other, and the due time of each.
    """
    at = 0
    while at < len(data):
        head, at = head_of(data, at)
        if head.mark & 64:
            yield head, head.due_ms
        else:
            yield head, int.from_bytes(data[at : at + 8], "big")
            at += 8


class Packed(NamedTuple):
    """
    One entry of the stream, the events of one script call, not taken apart yet.
    """

    offset: Offset
    at_ms: int
    counts: tuple[tuple[Verb, int], ...]  #: how many events of each verb, in their order
    worker: str
    values: dict[bytes, bytes]


def packed(entry: bytes, fields: list[bytes]) -> Packed:
    """
    Read what an entry says of itself.
    """
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    about = values[b"about"]
    at_ms, *_ = ABOUT.unpack_from(about)
    _, counts, worker = about[ABOUT.size :].decode().split("\n", 2)
    words = counts.split(" ")
    verbs = tuple((Verb(word), int(size)) for word, size in zip(words[::2], words[1::2], strict=True))
    return Packed(offset_of(entry, about), at_ms, verbs, worker, values)


def offset_of(entry: bytes, about: bytes) -> Offset:
    """
    The place of an entry, by its id and what it says of itself.
    """
    *_, nonce = ABOUT.unpack_from(about)
    epoch, _, _ = about[ABOUT.size :].partition(b"\n")
    return Offset(epoch.decode(), int(entry.partition(b"-")[0]), nonce.hex())


def unpack(shard: int, entry: bytes, fields: list[bytes]) -> tuple[Offset, list[Event]]:
    """
    Take one entry apart.
    """
    whole = packed(entry, fields)
    return whole.offset, events_of(shard, whole)


class Row(NamedTuple):
    """
    One thing that happened, as the entry holds it: with all that the record of the job said afterwards.
    """

    verb: Verb
    key: JobKey
    head: Head
    due_ms: int
    reason: str


def rows_of(entry: Packed) -> Iterator[Row]:
    """
    The rows of a packed entry.
    """
    rows = zip(
        [verb for verb, size in entry.counts for _ in range(size)],
        entry.values[b"members"].decode().split("\n"),
        _heads(entry.values[b"heads"]),
        entry.values[b"reasons"].decode().split("\n"),
        strict=True,
    )
    for verb, member, (head, due_ms), reason in rows:
        yield Row(verb, JobKey.of(member), head, due_ms, reason)


def events_of(shard: int, entry: Packed) -> list[Event]:
    """
    The events of a packed entry.
    """
    (epoch, counter, _), at_ms, _, worker, _ = entry
    return [
        Event(
            shard,
            epoch,
            counter,
            number,
            at_ms,
            verb,
            key.topic,
            key.id,
            head.revision,
            head.state,
            head.lane.name,
            head.attempts + 1 if verb in _OPEN_RUN else head.attempts,
            head.crashes,
            due_ms,
            None if head.lateness_ms == UNKNOWN else head.lateness_ms,
            at_ms - head.started_ms if verb in _END_OF_RUN else None,
            worker if verb is Verb.claimed else "",
            reason,
        )
        for number, (verb, key, head, due_ms, reason) in enumerate(rows_of(entry))
    ]
