"""
Jobs of the queue as a comparison needs them: straight from their records, hundreds in one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from duly.due import due_scores
from duly.job import JobKey, JobState, shard_of
from duly.record.rules import Queued
from duly.records import UNKNOWN, Record, is_readable, read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from duly.store import Store

STEP = 500  #: jobs in one call: what a server answers within a few milliseconds


class Sighted(NamedTuple):
    """
    A job as it is stored.
    """

    key: JobKey
    record: Record
    body: bytes  #: envelope and payload
    due_ms: int

    @property
    def queued(self) -> Queued:
        """
        What a comparison needs of it; the body in the form that `mending` gives what was promised.
        """
        head = self.record.head
        body = b"".join((bytes([head.lane]), self.record.options, self.body))
        return Queued(head.revision, head.state, self.due_ms, body, began=bool(head.attempts or head.crashes))

    def row(self, namespace: str, generation: int, now_ms: int, outcome: bytes) -> dict[str, Any]:
        """
        The row that takes it over.
        """
        record, head = self.record, self.record.head
        ended = head.state.ended
        return {
            "namespace": namespace,
            "topic": self.key.topic,
            "id": self.key.id,
            "revision": head.revision,
            "request": head.request,
            "state": head.state if ended else JobState.scheduled,
            "due_ms": self.due_ms,
            "relay_ms": None,
            "hydrated": head.revision,
            "generation": generation,
            "lane": head.lane,
            "ttr_ms": record.ttr_ms,
            "expires_ms": record.expires_ms,
            "retain_s": None if record.retain_s == UNKNOWN else record.retain_s,
            "max_crashes": record.max_crashes,
            "attempts": head.attempts,
            "crashes": head.crashes,
            "payload": self.body[record.envelope_bytes :],
            "envelope": self.body[: record.envelope_bytes],
            "outcome": outcome or None,
            "accepted_ms": record.created_ms,
            "changed_ms": now_ms,
            "started_ms": head.started_ms or None,
            "ended_ms": head.ended_ms if ended else None,
            "lateness_ms": None if head.lateness_ms == UNKNOWN else head.lateness_ms,
        }


def sighted(key: JobKey, stored: bytes, apart: bytes | None, due: bytes | None) -> Sighted:
    """
    A job by what the server holds of it: its record, the body that is kept apart, the time it waits for.
    """
    record = read(stored)
    return Sighted(
        key,
        record,
        (apart or b"") if record.apart else record.body,
        int(float(due)) if due else record.head.due_ms,
    )


async def look_up(store: Store, keys: Sequence[JobKey]) -> list[Sighted | None]:
    """
    What the queue holds of each of *keys*, None where it has no such job, or one that cannot be read.
    """
    found: list[Sighted | None] = [None] * len(keys)
    for shard, positions in _by_shard(store, keys):
        seen = await _look(store, shard, [keys[position] for position in positions])
        for position, sighted in zip(positions, seen, strict=True):
            found[position] = sighted
    return found


async def adopted(store: Store, keys: Sequence[JobKey], generation: int, now_ms: int) -> list[dict[str, Any]]:
    """
    Rows that take over what the queue holds of *keys*.
    """
    rows = []
    # All of a job at one moment: nobody looks at it a second time, as where something differs.
    for key, about in zip(keys, await store.get(keys), strict=True):
        if about:
            stored, apart, outcome, _, due, _ = about
            rows.append(sighted(key, stored, apart, due).row(store.namespace, generation, now_ms, outcome))
    return rows


async def members(store: Store) -> AsyncIterator[list[JobKey]]:
    """
    The keys of all jobs that the queue holds, some at a time; one that comes or goes meanwhile may be missed.
    """
    for keys in store.keys:
        cursor = b"0"
        while True:
            cursor, found = await store.link.call("HSCAN", keys.fixed["jobs"], cursor, "COUNT", STEP)
            if found:
                yield [JobKey.of(member) for member in found[::2]]
            if cursor == b"0":
                break


def _by_shard(store: Store, keys: Sequence[JobKey]) -> list[tuple[int, list[int]]]:
    """
    Positions of keys, each list on one shard and short enough for one call.
    """
    places: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        places.setdefault(shard_of(key.topic, key.id, store.shards), []).append(position)
    return [
        (shard, positions[at : at + STEP])
        for shard, positions in places.items()
        for at in range(0, len(positions), STEP)
    ]


async def _look(store: Store, shard: int, keys: list[JobKey]) -> list[Sighted | None]:
    fixed, call = store.keys[shard].fixed, store.link.call
    names = [key.member for key in keys]
    stored: list[bytes | None] = [
        record if record is not None and is_readable(name, record) else None
        for name, record in zip(names, await call("HMGET", fixed["jobs"], *names), strict=True)
    ]
    apart = [name for name, each in zip(names, stored, strict=True) if each and each[0] >= 128]
    bodies = dict(zip(apart, await call("HMGET", fixed["bodies"], *apart), strict=True)) if apart else {}
    waiting = [
        name for name, each in zip(names, stored, strict=True) if each and each[0] & 7 == JobState.scheduled
    ]
    dues = await due_scores(store.link, store.keys[shard], waiting)
    return [
        None if data is None else sighted(key, data, bodies.get(name), dues.get(name))
        for key, name, data in zip(keys, names, stored, strict=True)
    ]
