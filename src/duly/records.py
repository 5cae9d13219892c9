"""
The stored record of a job, read: the twin of scripts/lib/records.lua.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from duly.codec import decode_envelope
from duly.job import Job, JobKey, JobState, Lane, Lease

if TYPE_CHECKING:
    from duly.job import Order

BASE = Struct(">BQ6s")
OPTIONS = Struct(">QIIBI")
RUN = Struct(">QHHQQ8sBBQQI")
UNKNOWN = 0xFFFFFFFF
HEAD = Struct(BASE.format + RUN.format[1:])  #: the fixed part of a record, as events keep it
FIRST_HEAD = Struct(BASE.format + "Q")  #: the same while it waits for its first run: base and due
INLINE_BYTES = 1024

_STATES = tuple(JobState)
_LANES = tuple(Lane)
_NO_OPTIONS = (0, 0, UNKNOWN, 0, 0)
NO_RUN = (0, 0, 0, 0, 0, b"", 0, 0, 0, 0, UNKNOWN)


class Record(NamedTuple):
    """
    What the shard knows of one job.
    """

    state: JobState
    lane: Lane
    apart: bool
    revision: int
    request: bytes
    expires_ms: int
    ttr_ms: int
    retain_s: int
    max_crashes: int
    envelope_bytes: int
    due_ms: int  #: 0 while it waits for its first run: then `due` holds it
    attempts: int
    crashes: int
    entry: int
    token: int
    nonce: bytes
    verb: int
    marks: int
    started_ms: int
    ended_ms: int
    lateness_ms: int
    worker: str
    body: bytes


def read(record: bytes) -> Record:
    """
    Take a record apart.
    """
    mark, revision, request = BASE.unpack_from(record)
    at = BASE.size
    options = _NO_OPTIONS
    if mark & 32:
        options = OPTIONS.unpack_from(record, at)
        at += OPTIONS.size
    run = NO_RUN
    worker = ""
    if mark & 64:
        run = RUN.unpack_from(record, at)
        at += RUN.size
        end = record.index(0, at)
        worker = record[at:end].decode()
        at = end + 1
    return Record(
        _STATES[mark & 7], _LANES[mark >> 3 & 3], mark >= 128, revision, request, *options, *run, worker, record[at:]
    )


def options_of(order: Order) -> bytes:
    """
    The options part of a record: empty when nothing was asked for.
    """
    if not (order.expires_ms or order.ttr_ms or order.max_crashes or order.envelope) and order.retain_s is None:
        return b""
    retain = UNKNOWN if order.retain_s is None else order.retain_s
    return OPTIONS.pack(order.expires_ms, order.ttr_ms, retain, order.max_crashes, len(order.envelope))


class Terms(NamedTuple):
    """
    What a claim knows of its own call: the frame of the leases it brings.
    """

    shard: int
    now_ms: int
    lease_ms: int
    grace_ms: int


def lease_of(member: bytes, record: bytes, apart: bytes, ttr_ms: int, resumed_ms: int, terms: Terms) -> Lease:
    """
    The lease that a claimed record stands for.
    """
    mark, revision, _ = BASE.unpack_from(record)
    at = BASE.size
    envelope_bytes = 0
    if mark & 32:
        _, own_ttr_ms, _, _, envelope_bytes = OPTIONS.unpack_from(record, at)
        ttr_ms = own_ttr_ms or ttr_ms
        at += OPTIONS.size
    due_ms, attempts, crashes, _, token, nonce, _, _, started_ms, _, _ = RUN.unpack_from(record, at)
    body = apart if mark >= 128 else record[record.index(0, at + RUN.size) + 1 :]
    topic, _, id_ = member.decode().partition("/")
    return Lease(
        JobKey(topic, id_),
        terms.shard,
        Lane.suspect if crashes else _LANES[mark >> 3 & 3],
        revision,
        token,
        nonce,
        attempts + 1,
        crashes,
        due_ms,
        started_ms,
        terms.now_ms + min(terms.lease_ms, ttr_ms + terms.grace_ms),
        ttr_ms,
        max(due_ms, resumed_ms),
        body[envelope_bytes:] if envelope_bytes else body,
        body[:envelope_bytes] if envelope_bytes else b"",
    )


def job_of(member: bytes | str, about: list[bytes]) -> Job:
    """
    The job that `get` found.
    """
    record = read(about[0])
    key = JobKey.of(member)
    body = about[1] if record.apart else record.body
    return Job(
        topic=key.topic,
        id=key.id,
        state=record.state,
        revision=record.revision,
        priority=record.lane.name,  # type: ignore[arg-type]  # suspects keep their own lane in the record
        attempts=record.attempts,
        crashes=record.crashes,
        payload=body[record.envelope_bytes :],
        due_ms=int(float(about[4])) if about[4] else record.due_ms,
        started_ms=record.started_ms,
        ended_ms=record.ended_ms,
        lateness_ms=None if record.lateness_ms == UNKNOWN else record.lateness_ms,
        worker=record.worker,
        lease_ms=int(float(about[5])) if about[5] else 0,
        outcome=about[2],
        progress=about[3],
        ttr_ms=record.ttr_ms,
        expires_ms=record.expires_ms,
        envelope=decode_envelope(body[: record.envelope_bytes]),
    )
