"""
What happened: one frozen value per thing that a script did to a job.

The log line, the metric, the feed and the Spark schema derive from these fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from duly.job import JobKey


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
    rescheduled = "rescheduled"
    requeued = "requeued"
    pruned = "pruned"
    paused = "paused"  #: of a topic: the id is empty
    resumed = "resumed"  #: of a topic: the id is empty
    mended = "mended"  #: by the auditor; the reason says what disagreed


@dataclass(frozen=True, slots=True)
class Event:
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
    attempt: int | None
    due_ms: int | None
    lateness_ms: int | None
    run_ms: int | None
    worker: str
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


def unpack(shard: int, entry: bytes, fields: list[bytes]) -> tuple[Offset, list[Event]]:
    """
    Take one packed entry apart.
    """
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    counter = int(entry.partition(b"-")[0])
    epoch = values[b"epoch"].decode()
    at_ms = int(values[b"at"])
    events = []
    for row, line in enumerate(values[b"jobs"].decode().split("\n")):
        verb, member, revision, attempt, due_ms, lateness_ms, run_ms, worker, reason = line.split("\t")
        key = JobKey.of(member)
        events.append(
            Event(
                shard,
                epoch,
                counter,
                row,
                at_ms,
                Verb(verb),
                key.topic,
                key.id,
                int(revision),
                _number(attempt),
                _number(due_ms),
                _number(lateness_ms),
                _number(run_ms),
                worker,
                reason,
            )
        )
    return Offset(epoch, counter, values[b"nonce"].hex()), events


def _number(text: str) -> int | None:
    return int(float(text)) if text else None
