"""
The stored record of a job, read: the twin of scripts/lib/records.lua.
"""

from __future__ import annotations

import hashlib
import logging
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from duly.codec import readable_envelope
from duly.job import PER_MS, Job, JobKey, JobState, Lane, Lease

if TYPE_CHECKING:
    from duly.codec import Envelope
    from duly.job import Order, Priority

log = logging.getLogger("duly.records")

BASE = Struct(">BQ6s")
OPTIONS = Struct(">QIIBIH")  #: its last number is how many bytes of further parts follow
RUN = Struct(">BHHBBQQIQ8s8sQQ")
HEAD = Struct(RUN.format + "Q6s")  #: all of a record but options and body
FIRST_HEAD = Struct(BASE.format + "Q")  #: what events keep of one that waits for its first run: base and due
UNKNOWN = 0xFFFFFFFF
INLINE_BYTES = 1024
BODY_DROPPED = 4  #: the mark of a stub, whose payload is gone
HALF = 32  #: that of one half of a group that crashed together
RESULT_DROPPED = 64  #: that of a stub whose result is gone, too
NOBODY = bytes(8)
CREATED = 1  #: the further part that tells when a job was accepted whose revision is a later one
FIRST_DUE = 2  #: the one that tells when a job was due first that was retried since
PART = Struct(">BB6s")

_STATES = tuple(JobState)
_LANES = tuple(Lane)


class Head(NamedTuple):
    """
    The fixed part of a record.
    """

    mark: int
    attempts: int
    crashes: int
    verb: int
    marks: int
    entry: int
    ended_ms: int
    lateness_ms: int
    token: int
    nonce: bytes
    worker: bytes
    started_ms: int
    due_ms: int  #: 0 while it waits for its first run: then `due` holds it
    revision: int
    request: bytes

    @property
    def state(self) -> JobState:
        """
        Where the job stands.
        """
        return _STATES[self.mark & 7]

    @property
    def lane(self) -> Lane:
        """
        The lane that its sender chose.
        """
        return _LANES[self.mark >> 3 & 3]

    @property
    def priority(self) -> Priority:
        """
        What users call the lane; a callback has none of its own.
        """
        return cast("Priority", "normal" if self.lane is Lane.callback else self.lane.name)


def head_of(data: bytes, at: int = 0) -> tuple[Head, int]:
    """
    Read a head and say where it ends.
    """
    if data[at] & 64:
        return Head._make(HEAD.unpack_from(data, at)), at + HEAD.size
    mark, revision, request = BASE.unpack_from(data, at)
    head = Head(mark, 0, 0, 0, 0, 0, 0, UNKNOWN, 0, NOBODY, NOBODY, 0, 0, revision, request)
    return head, at + BASE.size


def worker_id(name: str) -> bytes:
    """
    The 8 bytes that stand for a worker's name in records.
    """
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


class Record(NamedTuple):
    """
    What the shard knows of one job.
    """

    head: Head
    expires_ms: int
    ttr_ms: int
    retain_s: int
    max_crashes: int
    envelope_bytes: int
    parts: bytes  #: further ones: a byte that names each, a byte for its length, its value
    body: bytes

    @property
    def apart(self) -> bool:
        """
        Whether the body is kept elsewhere because it is long.
        """
        return self.head.mark >= 128

    @property
    def options(self) -> bytes:
        """
        What its sender said, as `pack_options` writes it.
        """
        retain_s = None if self.retain_s == UNKNOWN else self.retain_s
        return pack_options(self.expires_ms, self.ttr_ms, retain_s, self.max_crashes, self.envelope_bytes)

    @property
    def created_ms(self) -> int:
        """
        When the job was accepted first.
        """
        return part_of(self.parts, CREATED) or self.head.revision // PER_MS


def part_of(parts: bytes, name: int) -> int:
    """
    Return the milliseconds of one of the further parts; 0 if it is not there.
    """
    at = 0
    while at < len(parts):
        its_name, size = parts[at : at + 2]
        if its_name == name:
            return int.from_bytes(parts[at + 2 : at + 2 + size])
        at += 2 + size
    return 0


def updated_ms(revision: int, verb: int, entry: int, started_ms: int, ended_ms: int, due_ms: int) -> int:
    """
    Return when a job changed its state or its due time last, by what its head says.
    """
    revised_ms = revision // PER_MS
    # A job that was due when it was accepted is in line since then, and its entry has a number behind that.
    lined_up_ms = entry // PER_MS if verb or due_ms > revised_ms else 0
    return max(revised_ms, lined_up_ms, started_ms, ended_ms)


def read(record: bytes) -> Record:
    """
    Take a record apart.
    """
    head, at = head_of(record)
    if not head.mark & 32:
        return Record(head, 0, 0, UNKNOWN, 0, 0, b"", record[at:])
    expires_ms, ttr_ms, retain_s, max_crashes, envelope_bytes, size = OPTIONS.unpack_from(record, at)
    at += OPTIONS.size
    parts, body = record[at : at + size], record[at + size :]
    return Record(head, expires_ms, ttr_ms, retain_s, max_crashes, envelope_bytes, parts, body)


def is_whole(record: bytes) -> bool:
    """
    Return whether a record holds what its mark says.
    """
    if len(record) < BASE.size or record[0] & 7 > JobState.cancelled:
        return False
    has_run, has_options = record[0] & 64, record[0] & 32
    if not has_run and record[0] & 7 != JobState.scheduled:
        return False
    at = HEAD.size if has_run else BASE.size
    if not has_options:
        return len(record) >= at
    return len(record) >= at + OPTIONS.size and len(record) >= at + options_size(record, at)


def is_readable(member: bytes | str, record: bytes) -> bool:
    """
    Return whether a stored job can be read; of one that cannot, the log tells once.

    Readers leave such a job out.  They change nothing: the next script that meets it, the auditor's at the
    latest, puts it into quarantine.
    """
    if is_whole(record):
        return True
    _tell_damaged(member.decode(errors="backslashreplace") if isinstance(member, bytes) else member)
    return False


@lru_cache(maxsize=1_000)
def _tell_damaged(member: str) -> None:
    log.warning("the stored job %s is damaged and left out; the auditor puts it into quarantine", member)


def options_at(record: bytes) -> tuple[int, int]:
    """
    Where the options of a record begin, and where its body does.
    """
    at = HEAD.size if record[0] & 64 else BASE.size
    return at, at + (options_size(record, at) if record[0] & 32 else 0)


def options_size(data: bytes, at: int) -> int:
    """
    How many bytes the options that begin at a place take, with the parts behind them.
    """
    return OPTIONS.size + int.from_bytes(data[at + OPTIONS.size - 2 : at + OPTIONS.size])


def options_of(order: Order) -> bytes:
    """
    The options part of a record: empty when nothing was asked for.
    """
    created = PART.pack(CREATED, 6, order.created_ms.to_bytes(6)) if order.created_ms else b""
    return pack_options(
        order.expires_ms, order.ttr_ms, order.retain_s, order.max_crashes, len(order.envelope), created
    )


def pack_options(
    expires_ms: int,
    ttr_ms: int,
    retain_s: int | None,
    max_crashes: int,
    envelope_bytes: int,
    parts: bytes = b"",
) -> bytes:
    """
    The same, of an order's single options.
    """
    if retain_s is None and not (expires_ms or ttr_ms or max_crashes or envelope_bytes or parts):
        return b""
    # Orders share a script call: one that asks for more than a record holds must not fail them all.
    packed = OPTIONS.pack(
        expires_ms,
        min(ttr_ms, UNKNOWN),
        UNKNOWN if retain_s is None else min(retain_s, UNKNOWN - 1),
        min(max_crashes, 255),
        envelope_bytes,
        len(parts),
    )
    return packed + parts


class Terms(NamedTuple):
    """
    What a claim knows of its own call and of a topic: the frame of the leases it brings.
    """

    topic: str
    shard: int
    now_ms: int
    lease_ms: int
    grace_ms: int
    ttr_ms: int  #: of jobs that have none of their own
    resumed_ms: int  #: when the last pause of the topic ended


def lease_of(member: bytes, record: bytes, apart: bytes, terms: Terms) -> Lease:
    """
    The lease that a claimed record stands for.
    """
    topic, shard, now_ms, lease_ms, grace_ms, ttr_ms, resumed_ms = terms
    (mark, attempts, crashes, _, marks, _, _, _, token, nonce, _, started_ms, due_ms, revision, _) = (
        HEAD.unpack_from(record)
    )
    at = HEAD.size
    envelope_bytes = 0
    if mark & 32:
        _, own_ttr_ms, _, _, envelope_bytes, size = OPTIONS.unpack_from(record, at)
        ttr_ms = own_ttr_ms or ttr_ms
        at += OPTIONS.size + size
    body = apart if mark >= 128 else record[at:]
    return Lease(
        JobKey(topic, member[len(topic) + 1 :].decode()),
        shard,
        _waits_in(mark, crashes) if crashes else _LANES[mark >> 3 & 3],
        revision,
        token,
        nonce,
        attempts + 1,
        crashes,
        due_ms,
        started_ms,
        now_ms + min(lease_ms, ttr_ms + grace_ms),
        ttr_ms,
        max(due_ms, resumed_ms),
        body[envelope_bytes:] if envelope_bytes else body,
        body[:envelope_bytes] if envelope_bytes else b"",
        marks // HALF & 1,
        record,
    )


def _waits_in(mark: int, crashes: int) -> Lane:
    """
    The lane that a job waited in that has crashed: see lib/records.lua.
    """
    lane = _LANES[mark >> 3 & 3]
    if lane is Lane.callback:
        return lane
    return Lane.suspect if crashes == 1 else Lane.isolated


def job_of(member: bytes | str, about: list[bytes], worker: str) -> Job:
    """
    The job that `get` found; *worker* is the name of who ran it last.
    """
    record = read(about[0])
    body = about[1] if record.apart else record.body
    return _job(
        member,
        record,
        readable_envelope(body[: record.envelope_bytes]),
        due_ms=int(float(about[4])) if about[4] else record.head.due_ms,
        payload=body[record.envelope_bytes :],
        worker=worker,
        lease_ms=int(float(about[5])) if about[5] else 0,
        outcome=about[2],
        result_gone=bool(record.head.marks & RESULT_DROPPED),
        progress=about[3],
    )


def ended_job(member: bytes, data: bytes, outcome: bytes) -> Job:
    """
    The job that a reply tells of: *data* is its record as it was when it ended, without the payload.
    """
    # One without its options, as they were written before, must not stop the queue of replies.
    record = read(data) if is_whole(data) else Record(head_of(data)[0], 0, 0, UNKNOWN, 0, 0, b"", b"")
    envelope = readable_envelope(record.body)
    return _job(member, record, envelope, due_ms=record.head.due_ms, payload=b"", outcome=outcome)


def leased_job(lease: Lease, envelope: Envelope) -> Job:
    """
    The job that a claim brought, as it runs now.
    """
    return _job(
        lease.key.member,
        read(lease.record),
        envelope,
        due_ms=lease.due_ms,
        payload=lease.payload,
        lease_ms=lease.expires_ms,
    )


def _job(member: bytes | str, record: Record, envelope: Envelope, *, due_ms: int, **more: Any) -> Job:
    head = record.head
    key = JobKey.of(member)
    return Job(
        topic=key.topic,
        id=key.id,
        state=head.state,
        revision=head.revision,
        priority=head.priority,
        attempts=head.attempts,
        crashes=head.crashes,
        due_ms=due_ms,
        scheduled_ms=part_of(record.parts, FIRST_DUE) or due_ms,
        created_ms=record.created_ms,
        updated_ms=updated_ms(
            *(head.revision, head.verb, head.entry, head.started_ms, head.ended_ms, head.due_ms)
        ),
        started_ms=head.started_ms,
        ended_ms=head.ended_ms,
        lateness_ms=None if head.lateness_ms == UNKNOWN else head.lateness_ms,
        ttr_ms=record.ttr_ms,
        expires_ms=record.expires_ms,
        retain_s=None if record.retain_s == UNKNOWN else record.retain_s,
        envelope=envelope,
        **more,
    )
