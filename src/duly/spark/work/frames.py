"""
Jobs as a DataFrame: what a batch handler is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from duly.codec import Unreadable, decode_envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import Lease

#: One row for each job.  Payload and context are JSON; the token grows with every claim of a job, so that
#: what a function writes elsewhere can be fenced.
JOBS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("payload", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("due_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("context", pa.string()),
        pa.field("token", pa.string(), nullable=False),
    ]
)


def readable(leases: Sequence[Lease]) -> tuple[list[Lease], dict[str, Unreadable]]:
    """
    Tell the jobs that a DataFrame can hold from those that it cannot, by their ids.
    """
    if not any(lease.envelope for lease in leases) and _are_texts([lease.payload for lease in leases]):
        return list(leases), {}
    good, bad = [], {}
    for lease in leases:
        try:
            lease.payload.decode()
            decode_envelope(lease.envelope)
        except UnicodeDecodeError as error:
            bad[lease.key.id] = Unreadable(f"payload is not UTF-8: {error}")
        except Unreadable as error:
            bad[lease.key.id] = error
        else:
            good.append(lease)
    return good, bad


def frame_of(leases: Sequence[Lease]) -> pa.Table:
    """
    The table of some jobs, all of them readable.
    """
    columns = [
        pa.array([lease.key.id for lease in leases], pa.string()),
        pa.array([lease.payload for lease in leases], pa.binary()).cast(pa.string()),
        pa.array([lease.attempt for lease in leases], pa.int32()),
        pa.array([lease.due_ms * 1000 for lease in leases], pa.timestamp("us", "UTC")),
        pa.array([_context(lease) for lease in leases], pa.string()),
        pa.array([lease.fence for lease in leases], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=JOBS)


def _are_texts(payloads: list[bytes]) -> bool:
    try:
        pa.array(payloads, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _context(lease: Lease) -> str | None:
    context = decode_envelope(lease.envelope).context if lease.envelope else None
    return msgspec.json.encode(context).decode() if context else None
