"""
Packed entries taken apart into columns, many at once: the twin of `duly.events.unpack`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duly.events import ABOUT, Offset, Verb
from duly.job import JobState, Lane
from duly.records import FIRST_HEAD, HEAD, UNKNOWN, head_of
from duly.spark.events.schema import ARROW, PACKED_ARROW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_OPEN_RUN = ("claimed", "released", "recovered")
_END_OF_RUN = ("acked", "retried", "buried", "released", "recovered")

#: `records.HEAD` as numpy reads it; a test compares the two.
FULL = np.dtype(
    [
        ("mark", "u1"),
        ("attempts", ">u2"),
        ("crashes", ">u2"),
        ("verb", "u1"),
        ("marks", "u1"),
        ("entry", ">u8"),
        ("ended_ms", ">u8"),
        ("lateness_ms", ">u4"),
        ("token", ">u8"),
        ("nonce", "S8"),
        ("worker", "S8"),
        ("started_ms", ">u8"),
        ("due_ms", ">u8"),
        ("revision", ">u8"),
        ("request", "S6"),
    ]
)
#: `records.FIRST_HEAD`, of a job that waits for its first run.
FIRST = np.dtype([("mark", "u1"), ("revision", ">u8"), ("request", "S6"), ("due_ms", ">u8")])

_STATES = pa.array([state.name for state in JobState])
_LANES = pa.array([lane.name for lane in Lane])
_VERBS = pa.array([verb.value for verb in Verb])
_VERB_NUMBERS = {verb.value: number for number, verb in enumerate(Verb)}
_OPEN_NUMBERS = [_VERB_NUMBERS[verb] for verb in _OPEN_RUN]
_END_NUMBERS = [_VERB_NUMBERS[verb] for verb in _END_OF_RUN]
_CLAIMED = _VERB_NUMBERS["claimed"]


class Entry(NamedTuple):
    """
    One packed entry, with what is said of it as a whole.
    """

    offset: Offset
    at_ms: int
    rows_total: int  #: rows of the stream up to and with this entry
    verbs: list[tuple[int, int]]  #: number of the verb, rows of it
    worker: str
    about: bytes  #: what the fields above were read from
    members: bytes
    heads: bytes
    reasons: bytes

    @property
    def rows(self) -> int:
        """
        How many events it holds.
        """
        return sum(size for _, size in self.verbs)


def entry_of(id_: bytes, fields: Sequence[bytes]) -> Entry:
    """
    Read what an entry says of itself; its rows stay packed.
    """
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    parts = (values[b"about"], values[b"members"], values[b"heads"], values[b"reasons"])
    return _entry(int(id_.partition(b"-")[0]), *parts)


def packed_of(shard: int, entries: Sequence[Entry]) -> pa.RecordBatch:
    """
    Entries of one shard as they are, see `schema.PACKED`.
    """
    columns = {
        "shard": pa.array(np.full(len(entries), shard, np.int64)),
        "counter": pa.array([entry.offset.counter for entry in entries], pa.int64()),
        **{
            name: pa.array([getattr(entry, name) for entry in entries], pa.binary())
            for name in ("about", "members", "heads", "reasons")
        },
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in PACKED_ARROW.names], schema=PACKED_ARROW)


def entries_of(packed: pa.RecordBatch) -> list[Entry]:
    """
    The way back from `packed_of`.
    """
    names = ("counter", "about", "members", "heads", "reasons")
    columns = [packed.column(name).to_pylist() for name in names]
    return [_entry(*values) for values in zip(*columns, strict=True)]


def _entry(counter: int, about: bytes, members: bytes, heads: bytes, reasons: bytes) -> Entry:
    at_ms, rows_total, _, nonce = ABOUT.unpack_from(about)
    epoch, counts, worker = about[ABOUT.size :].decode().split("\n", 2)
    words = counts.split(" ")
    verbs = [(_VERB_NUMBERS[word], int(size)) for word, size in zip(words[::2], words[1::2], strict=True)]
    offset = Offset(epoch, counter, nonce.hex())
    return Entry(offset, at_ms, rows_total, verbs, worker, about, members, heads, reasons)


def batch_of(shard: int, entries: Sequence[Entry]) -> pa.RecordBatch:
    """
    The events of some entries of one shard, in their order, as columns.
    """
    rows = np.array([entry.rows for entry in entries], np.int64)
    total = int(rows.sum())
    of_entry = np.repeat(np.arange(len(entries)), rows)
    sizes = [pair for entry in entries for pair in entry.verbs]
    verb = np.repeat([number for number, _ in sizes], [size for _, size in sizes])
    heads = _heads(entries, rows)
    at_ms = np.array([entry.at_ms for entry in entries], np.int64)[of_entry]
    topic, id_ = _names(entries)
    open_run, ended = np.isin(verb, _OPEN_NUMBERS), np.isin(verb, _END_NUMBERS)
    first_rows = np.repeat(np.cumsum(rows) - rows, rows)
    workers = pa.array([entry.worker for entry in entries]).take(pa.array(of_entry))
    columns = {
        "shard": pa.array(np.full(total, shard, np.int64)),
        "epoch": pa.array([entry.offset.epoch for entry in entries]).take(pa.array(of_entry)),
        "counter": pa.array(np.array([entry.offset.counter for entry in entries], np.int64)[of_entry]),
        "row": pa.array(np.arange(total) - first_rows),
        "at_ms": pa.array(at_ms),
        "verb": _VERBS.take(pa.array(verb)),
        "topic": topic,
        "id": id_,
        "revision": pa.array(heads["revision"]),
        "state": _STATES.take(pa.array(heads["mark"] & 7)),
        "priority": _LANES.take(pa.array(heads["mark"] >> 3 & 3)),
        "attempt": pa.array(heads["attempts"] + open_run),
        "crashes": pa.array(heads["crashes"]),
        "due_ms": pa.array(heads["due_ms"]),
        "lateness_ms": pa.array(heads["lateness_ms"], mask=heads["lateness_ms"] == UNKNOWN),
        "run_ms": pa.array(at_ms - heads["started_ms"], mask=~ended),
        "worker": pc.if_else(pa.array(verb == _CLAIMED), workers, ""),
        "reason": _reasons(entries, rows),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in ARROW.names], schema=ARROW)


def _heads(entries: Sequence[Entry], rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """
    The numbers in the heads of all rows; those that a first head lacks are 0, or not known.
    """
    full, starts = _starts(entries, rows)
    data = np.frombuffer(b"".join(entry.heads for entry in entries), np.uint8)
    found = {
        name: np.zeros(len(full), np.int64)
        for name in ("mark", "attempts", "crashes", "started_ms", "due_ms", "revision")
    }
    found["lateness_ms"] = np.full(len(full), UNKNOWN, np.int64)
    for kind, chosen in ((FULL, full), (FIRST, ~full)):
        if not chosen.any():
            continue
        taken = data[starts[chosen][:, None] + np.arange(kind.itemsize)].view(kind).ravel()
        for name, values in found.items():
            if name in (kind.names or ()):
                values[chosen] = taken[name]
    return found


def _starts(entries: Sequence[Entry], rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """
    Which rows have a full head, and where each head begins.
    """
    sizes: list[NDArray[np.int64]] = []
    for entry, count in zip(entries, rows, strict=True):
        # Two sizes only: if the sum is that of one kind alone, there is no other.
        if len(entry.heads) in (count * HEAD.size, count * FIRST_HEAD.size):
            sizes.append(np.full(count, len(entry.heads) // count, np.int64))
            continue
        mixed, at = [], 0
        while at < len(entry.heads):
            head, _ = head_of(entry.heads, at)
            mixed.append(HEAD.size if head.mark & 64 else FIRST_HEAD.size)
            at += mixed[-1]
        sizes.append(np.array(mixed, np.int64))
    all_sizes = np.concatenate(sizes)
    return all_sizes == HEAD.size, np.cumsum(all_sizes) - all_sizes


def _names(entries: Sequence[Entry]) -> tuple[pa.Array, pa.Array]:
    members = pa.array(b"\n".join(entry.members for entry in entries).decode().split("\n"))
    # Neither a topic nor an id holds a slash.
    parts = pc.split_pattern(members, "/", max_splits=1).flatten()
    topics = np.arange(0, len(parts), 2)
    return parts.take(pa.array(topics)), parts.take(pa.array(topics + 1))


def _reasons(entries: Sequence[Entry], rows: NDArray[np.int64]) -> pa.Array:
    if all(len(entry.reasons) == count - 1 for entry, count in zip(entries, rows, strict=True)):
        return pa.repeat(pa.scalar(""), int(rows.sum()))
    return pa.array(b"\n".join(entry.reasons for entry in entries).decode().split("\n"))
