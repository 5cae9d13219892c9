"""
Stored records as rows of a scan: `duly.records.job_of`, without a value for each job in between.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from duly.codec import readable_envelope
from duly.defaults import DEFAULTS, attempts_of
from duly.job import PER_MS, JobState, Lane
from duly.options import IN_ENVELOPE
from duly.records import (
    BASE,
    CREATED,
    FIRST_DUE,
    HEAD,
    NOBODY,
    OPTIONS,
    RESULT_DROPPED,
    UNKNOWN,
    part_of,
    updated_ms,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STATES = tuple(state.name for state in JobState)
_PRIORITIES = tuple("normal" if lane is Lane.callback else lane.name for lane in Lane)

Row = tuple[Any, ...]


def row_of(
    member: bytes,
    about: Sequence[bytes],
    workers: Mapping[bytes, str],
    shard: int,
    *,
    max_attempts: int = DEFAULTS.max_attempts,
) -> Row:
    """
    One row, in the order of `columns.JOBS`; times in microseconds.

    *about* is what `get` answers for a job: record, body kept apart, outcome, progress, due_ms, lease_ms.
    *max_attempts* is for jobs that say none: no process of Spark knows their handlers.
    """
    record, apart, outcome, progress, score, lease = about
    attempts = crashes = ended_ms = started_ms = due_ms = ttr_ms = expires_ms = envelope_bytes = 0
    late_ms, worker, marks, retain_s = UNKNOWN, NOBODY, 0, UNKNOWN
    verb, entry, parts = 0, 0, b""
    if record[0] & 64:
        (
            mark,
            attempts,
            crashes,
            verb,
            marks,
            entry,
            ended_ms,
            late_ms,
            _,
            _,
            worker,
            started_ms,
            due_ms,
            revision,
            _,
        ) = HEAD.unpack_from(record)
        at = HEAD.size
    else:
        mark, revision, _ = BASE.unpack_from(record)
        at = BASE.size
    if mark & 32:
        expires_ms, ttr_ms, retain_s, _, envelope_bytes, size = OPTIONS.unpack_from(record, at)
        at += OPTIONS.size + size
        parts = record[at - size : at]
    body = apart if mark >= 128 else record[at:]
    envelope = _envelope(body[:envelope_bytes], max_attempts) if envelope_bytes else _nothing(max_attempts)
    waits_ms = int(float(score)) if score else due_ms
    topic, _, id_ = member.decode().partition("/")
    return (
        topic,
        id_,
        _STATES[mark & 7],
        revision,
        _PRIORITIES[mark >> 3 & 3],
        attempts,
        crashes,
        _text(body[envelope_bytes:]),
        _micros(waits_ms),
        _micros(part_of(parts, FIRST_DUE) or waits_ms),
        _micros(part_of(parts, CREATED) or revision // PER_MS),
        _micros(updated_ms(revision, verb, entry, started_ms, ended_ms, due_ms)),
        _micros(started_ms),
        _micros(ended_ms),
        None if late_ms == UNKNOWN else late_ms,
        None if worker == NOBODY else workers.get(worker, worker.hex()),
        _micros(int(float(lease)) if lease else 0),
        _text(outcome),
        bool(marks & RESULT_DROPPED),
        _text(progress),
        ttr_ms / 1000 if ttr_ms else None,
        _micros(expires_ms),
        None if retain_s == UNKNOWN else retain_s,
        *envelope,
        shard,
    )


def arrays_of(rows: list[Row], schema: pa.Schema) -> list[pa.Array]:
    """
    One array for each column.
    """
    size = len(rows)
    found = []
    for field, values in zip(schema, zip(*rows, strict=True), strict=True):
        if values.count(None) == size:
            found.append(pa.nulls(size, field.type))
        elif pa.types.is_timestamp(field.type):
            found.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            found.append(pa.array(values, field.type))
    return found


def _micros(ms: int) -> int | None:
    return ms * 1000 if ms else None


def _text(data: bytes) -> str | None:
    # Other clients may have stored what is no text; a scan shows it all the same.
    return data.decode(errors="backslashreplace") if data else None


def _envelope(data: bytes, max_attempts: int) -> Row:
    envelope = readable_envelope(data)
    held = msgspec.structs.replace(envelope, max_attempts=attempts_of(envelope, max_attempts))
    return tuple(scalar(getattr(held, option.name)) for option in IN_ENVELOPE)


@lru_cache(maxsize=8)
def _nothing(max_attempts: int) -> Row:
    return _envelope(b"", max_attempts)


def scalar(value: Any) -> Any:
    """
    What a column holds for a value of an envelope: an object becomes JSON.
    """
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value
