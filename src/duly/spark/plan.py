"""
What a write would do, found out by looking: the twin of what enqueue.lua decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.due import due_scores
from duly.job import moment
from duly.keys import ShardKeys
from duly.records import BODY_DROPPED, is_readable, read
from duly.spark.packing import REQUEST_BYTES, arguments
from duly.spark.sending import TAKEN, Chunk, Loop, chunks_of
from duly.spark.tally import Tally
from duly.store.packing import SPEC

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.job import OnConflict
    from duly.records import Record
    from duly.spark.packing import Parcel


class Planner:
    """
    Looks at the queue for the rows of one task, and changes nothing.
    """

    def __init__(
        self,
        loop: Loop,
        namespace: str,
        shards: int,
        on_conflict: OnConflict,
        refuse: Callable[[Parcel, dict[int, str]], None],
    ) -> None:
        self.tally = Tally()
        self._loop = loop
        self._keys = [ShardKeys(namespace, shard) for shard in range(shards)]
        self._on_conflict = on_conflict
        self._refuse = refuse
        self._seen: set[bytes] = set()

    def send(self, parcel: Parcel) -> None:
        """
        Compare a batch with what is there.
        """
        for chunk in chunks_of(parcel, len(self._keys)):
            members = [parcel.members[int(place)].as_py() for place in chunk.places]
            found = self._loop.call(self._look(chunk, members))
            refused: dict[int, str] = {}
            for place, member, (old, due_ms, body) in zip(chunk.places, members, found, strict=True):
                self._compare(parcel, int(place), member, old, due_ms, body, refused)
            if refused:
                self._refuse(parcel, refused)

    def finish(self) -> Tally:
        """
        What was found.
        """
        return self.tally

    async def _look(self, chunk: Chunk, members: list[bytes]) -> list[tuple[Record | None, int, bytes]]:
        keys, link = self._keys[chunk.shard], self._loop.link
        records = await link.call("HMGET", keys.fixed["jobs"], *members)
        scores = await due_scores(link, keys, members)
        bodies = await link.call("HMGET", keys.fixed["bodies"], *members)
        found: list[tuple[Record | None, int, bytes]] = []
        for member, record, apart in zip(members, records, bodies, strict=True):
            score = scores[member]
            if record is None or not is_readable(member, record):
                # A write puts a damaged one into quarantine, and takes its place.
                found.append((None, 0, b""))
                continue
            old = read(record)
            due_ms = int(float(score)) if score is not None else old.head.due_ms
            body = (apart or b"") if old.apart else old.body
            found.append((old, due_ms, body))
        return found

    def _compare(
        self,
        parcel: Parcel,
        place: int,
        member: bytes,
        old: Record | None,
        due_ms: int,
        body: bytes,
        refused: dict[int, str],
    ) -> None:
        name = member.decode()
        if old is None and member not in self._seen:
            # The same id further down would meet this one.
            self._seen.add(member)
            self.tally.new += 1
            self.tally.show("new", f"{name} due {said(int(parcel.due_ms[place]))}")
        elif self._on_conflict == "raise":
            refused[place] = TAKEN
        elif self._on_conflict == "keep" or (old is not None and _same(parcel, place, old, due_ms, body)):
            self.tally.kept += 1
        else:
            self.tally.replaced += 1
            was = f"{old.head.state.name}, due {said(due_ms)}" if old is not None else "another row"
            self.tally.show("replaced", f"{name} due {said(int(parcel.due_ms[place]))} (was {was})")


def _same(parcel: Parcel, place: int, old: Record, due_ms: int, body: bytes) -> bool:
    """
    Whether a row says what stands, but for a due time that is past: that is due now, whenever now is.
    """
    _, head, rest = arguments(parcel.rows[place].as_py())
    spec, row_due_ms = SPEC.unpack(head)
    if row_due_ms != due_ms or spec >> 3 & 3 != old.head.lane or old.head.marks & BODY_DROPPED:
        return False
    return bool(rest[REQUEST_BYTES:] == old.options + body)


def said(ms: int) -> str:
    """
    A due time for people.
    """
    when = moment(ms)
    return when.isoformat(timespec="milliseconds") if when else "now"
