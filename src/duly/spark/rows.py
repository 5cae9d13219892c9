"""
Jobs as columns of a scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from duly.job import Job

_MS = {
    "due_at": "due_ms",
    "started_at": "started_ms",
    "finished_at": "ended_ms",
    "lease_until": "lease_ms",
    "expires_at": "expires_ms",
}
_BYTES = ("payload", "outcome", "progress")
_WORDS = ("topic", "id", "revision", "priority", "attempts", "crashes", "lateness_ms")


def column_values(jobs: list[Job], shard: int, schema: pa.Schema) -> list[pa.Array]:
    """
    One array for each column of the schema.
    """
    values: dict[str, list[Any]] = {name: [getattr(job, name) for job in jobs] for name in _WORDS}
    for name, field in _MS.items():
        values[name] = [getattr(job, field) * 1000 or None for job in jobs]
    for name in _BYTES:
        values[name] = [_text(getattr(job, name)) for job in jobs]
    values["state"] = [job.state.name for job in jobs]
    values["worker"] = [job.worker or None for job in jobs]
    values["ttr_ms"] = [job.ttr_ms or None for job in jobs]
    envelopes = [job.envelope for job in jobs]
    values["max_attempts"] = [each.max_attempts if each else None for each in envelopes]
    values["callback"] = [each.callback if each else None for each in envelopes]
    values["backoff"] = [_json(each.backoff) if each else None for each in envelopes]
    values["context"] = [_json(each.context) if each else None for each in envelopes]
    values["shard"] = [shard] * len(jobs)
    return [_array(values[field.name], field.type) for field in schema]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def _text(data: bytes) -> str | None:
    # Other clients may have stored what is no text; a scan shows it all the same.
    return data.decode(errors="backslashreplace") if data else None


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
