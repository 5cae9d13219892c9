"""
How far a stream was read, and how far it may be read next.  What is decided here is written to checkpoints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from duly.events import Offset
from duly.feed import EventsLost

if TYPE_CHECKING:
    from duly.spark.events.shards import Shards
    from duly.spark.events.unpacking import Entry

ROLLED_BACK = "the server was rolled back to an earlier state"
EMPTIED = "the server was emptied and began anew"
TRIMMED = "trimmed before they were read"


@dataclass(frozen=True, slots=True)
class Place:
    """
    The last entry of one shard that belongs to a batch.

    `after` is there where a batch does not begin at the end of the one before: at the beginning of a stream,
    and behind what was lost, which `lost` tells.
    """

    epoch: str
    counter: int
    nonce: str
    rows: int = 0  #: rows of the stream up to and with it, by which a batch is measured
    after: int | None = None
    lost: str = ""

    @property
    def offset(self) -> Offset:
        """
        The place as `duly.feed` knows it.
        """
        return Offset(self.epoch, self.counter, self.nonce)


Places = dict[int, Place]  #: by shard


def write_places(places: Places) -> dict[str, Any]:
    """
    As Spark keeps them: text and numbers.
    """
    return {
        str(shard): {name: value for name, value in asdict(place).items() if value is not None}
        for shard, place in places.items()
    }


def read_places(document: dict[str, Any]) -> Places:
    """
    The way back.
    """
    return {int(shard): Place(**place) for shard, place in document.items()}


def place_of(entry: Entry, *, after: int | None = None, lost: str = "") -> Place:
    """
    The place behind an entry.
    """
    return Place(*entry.offset, entry.rows_total, after, lost)


def next_place(
    shards: Shards, shard: int, start: Place | None, last: Entry | None, max_rows: int | None, *, strict: bool
) -> Place | None:
    """
    Decide where the next batch ends: at *last*, or before it by the limit on rows.

    The entry at *start* is read again: if it is another one, or absent, events are missing.

    Raises:
        EventsLost: They are, and *strict* forbids to go on behind the gap.
    """
    if start is None:
        first = shards.first(shard)
        return _begin(shards, shard, first, last, max_rows) if first and last else None
    seen = shards.at(shard, start.counter)
    if seen is not None and seen.offset == start.offset:
        if last is None or last.offset.counter <= start.counter:
            return start
        return _within(shards, shard, start.counter, start.rows, last, max_rows)
    first = shards.first(shard)
    lost = _lost(shard, start, seen, first, last)
    if strict:
        raise lost
    if first is None or last is None:
        # Empty: there is no entry to stand at, and whatever comes next is behind this gap.
        return start
    if lost.why.startswith(ROLLED_BACK):
        # Where the old story ends and the new one begins cannot be told apart: go on from here.
        return place_of(last, after=last.offset.counter, lost=str(lost))
    return _begin(shards, shard, first, last, max_rows, lost=str(lost))


def _lost(
    shard: int, start: Place, seen: Entry | None, first: Entry | None, last: Entry | None
) -> EventsLost:
    if first is None or last is None:
        return EventsLost(shard, start.offset, None, f"{EMPTIED}: it has no events at all")
    newest = f"its newest event is {last.offset.counter} of epoch {last.offset.epoch}"
    if last.offset.epoch != start.epoch:
        return EventsLost(shard, start.offset, None, f"{EMPTIED}: {newest}")
    if seen is not None or last.offset.counter < start.counter:
        return EventsLost(shard, start.offset, None, f"{ROLLED_BACK}: {newest}")
    return EventsLost(shard, start.offset, first.offset.counter, TRIMMED)


def _begin(
    shards: Shards, shard: int, first: Entry, last: Entry, max_rows: int | None, *, lost: str = ""
) -> Place:
    """
    A batch that begins with the oldest entry there is.
    """
    after = first.offset.counter - 1
    end = _within(shards, shard, after, first.rows_total - first.rows, last, max_rows)
    return Place(end.epoch, end.counter, end.nonce, end.rows, after, lost)


def _within(shards: Shards, shard: int, after: int, rows: int, last: Entry, max_rows: int | None) -> Place:
    """
    The farthest place behind *after* with at most so many rows between, but one entry at least.
    """
    if max_rows is None or last.rows_total - rows <= max_rows:
        return place_of(last)
    low, high, best = after + 1, last.offset.counter - 1, None
    while low <= high:
        middle = (low + high) // 2
        entry = shards.at(shard, middle)
        # One that is gone was trimmed a moment ago: reading will tell.
        if entry is None or entry.rows_total - rows <= max_rows:
            best = entry or best
            low = middle + 1
        else:
            high = middle - 1
    if best is None:
        best = shards.at(shard, after + 1) or last
    return place_of(best)


def slices(after: int, last: int, count: int) -> list[tuple[int, int]]:
    """
    Cut the counters behind *after* up to *last* into at most *count* ranges of about the same size.
    """
    total = last - after
    count = min(max(1, count), total)
    cuts = [after + total * at // count for at in range(count + 1)] if count else []
    return [(begin + 1, end) for begin, end in pairwise(cuts)]
