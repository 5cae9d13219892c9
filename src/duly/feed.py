"""
The event stream of each shard, read from any place on, with every gap made evident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.errors import EventsLost
from duly.events import Offset, events_of, packed, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.events import Event, Packed
    from duly.store import Store

__all__ = ["EventsLost", "Feed"]


class Feed:
    """
    Reads events, and remembers for registered consumers how far they came.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(
        self, shard: int, after: Offset | None, limit: int = 100
    ) -> tuple[Offset | None, list[Event]]:
        """
        Return events of up to *limit* script calls after an offset, and the offset behind them.

        The entry at the offset is read again: if it is another one, or absent,
        the server lost a part of its past.

        Raises:
            EventsLost: There is a gap; its range is in the error.
        """
        read = await self.entries(shard, after, limit + 1 if after else limit)
        if after is not None:
            read = read[1:]
        events = [event for _, rows in read for event in rows]
        return (read[-1][0] if read else after), events

    async def entries(
        self, shard: int, at: Offset | None, limit: int = 100
    ) -> list[tuple[Offset, list[Event]]]:
        """
        Return up to *limit* script calls with their events, from the one at an offset on, which comes again.

        Raises:
            EventsLost: There is a gap; its range is in the error.
        """
        return [(each.offset, events_of(shard, each)) for each in await self.packed(shard, at, limit)]

    async def packed(self, shard: int, at: Offset | None, limit: int = 100) -> list[Packed]:
        """
        Return the same, packed: for those who look for little among much.

        Raises:
            EventsLost: There is a gap; its range is in the error.
        """
        start = f"{at.counter}-0" if at else "-"
        entries = await self._store.link.call(
            "XRANGE", self._key(shard, "events"), start, "+", "COUNT", limit
        )
        read = [packed(entry, fields) for entry, fields in entries]
        if at is None:
            if read and read[0].offset.counter != 1:
                raise EventsLost(shard, None, read[0].offset.counter, "trimmed before they were read")
        elif not read or read[0].offset != at:
            first = read[0].offset if read else None
            if first is None or first.counter == at.counter or first.epoch != at.epoch:
                raise EventsLost(shard, at, None, "the server was rolled back to an earlier state")
            raise EventsLost(shard, at, first.counter, "trimmed before they were read")
        return read

    async def news(self, after: Sequence[Offset | None], block_s: float) -> set[int]:
        """
        Wait until something has happened after the offsets of all shards, in one call that holds up no other.

        A server that was rolled back stays silent until it has come as far again: who waits looks at every
        shard now and then, whether or not there is news.

        Returns: the shards with news, none if there was none within *block_s*.
        """
        keys = [self._key(shard, "events").encode() for shard in range(len(after))]
        ids = [f"{offset.counter}-0" if offset else "0-0" for offset in after]
        # Zero would block for ever.
        block_ms = max(1, int(block_s * 1000))
        head = ("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS")
        reply = await self._store.link.call(*head, *keys, *ids, block_s=block_ms / 1000)
        return {keys.index(key) for key, _ in reply or ()}

    async def oldest(self, shard: int, limit: int = 100) -> list[tuple[Offset, list[Event]]]:
        """
        Return up to *limit* script calls with their events, from the oldest one that is still there.
        """
        return await self._range(shard, "-", limit)

    async def newest(self, shard: int) -> tuple[Offset, list[Event]] | None:
        """
        The newest script call with its events.
        """
        entries = await self._store.link.call("XREVRANGE", self._key(shard, "events"), "+", "-", "COUNT", 1)
        return unpack(shard, *entries[0]) if entries else None

    async def _range(self, shard: int, start: str, limit: int) -> list[tuple[Offset, list[Event]]]:
        entries = await self._store.link.call(
            "XRANGE", self._key(shard, "events"), start, "+", "COUNT", limit
        )
        return [unpack(shard, entry, fields) for entry, fields in entries]

    async def last(self, shard: int) -> Offset | None:
        """
        The offset of the newest event.
        """
        newest = await self.newest(shard)
        return newest[0] if newest else None

    async def latest(self, shard: int, limit: int = 100) -> tuple[Offset | None, list[Event]]:
        """
        Return the events of the newest *limit* script calls, oldest first, and the offset behind them.
        """
        entries = await self._store.link.call(
            "XREVRANGE", self._key(shard, "events"), "+", "-", "COUNT", limit
        )
        read = [unpack(shard, entry, fields) for entry, fields in reversed(entries)]
        return (read[-1][0] if read else None), [event for _, rows in read for event in rows]

    async def before(self, shard: int, counter: int | None, limit: int = 100) -> list[Packed]:
        """
        Return up to *limit* script calls before one, or the newest ones, packed and the newest first.
        """
        end = "+" if counter is None else f"({counter}-0"
        entries = await self._store.link.call(
            "XREVRANGE", self._key(shard, "events"), end, "-", "COUNT", limit
        )
        return [packed(entry, fields) for entry, fields in entries]

    async def first(self, shard: int) -> Offset | None:
        """
        The offset of the oldest event that is still there.
        """
        entries = await self._range(shard, "-", 1)
        return entries[0][0] if entries else None

    async def commit(self, consumer: str, shard: int, offset: Offset | None) -> None:
        """
        Note that *consumer* has done with everything up to *offset*; below the bound, trimming waits for it.
        """
        await self._store.link.call(
            "HSET", self._key(shard, "consumers"), consumer, str(offset or Offset("-", 0, "-"))
        )

    async def committed(self, consumer: str, shard: int) -> Offset | None:
        """
        How far *consumer* came, None if it is not registered or has committed nothing.
        """
        text = await self._store.link.call("HGET", self._key(shard, "consumers"), consumer)
        offset = Offset.of(text.decode()) if text else None
        return offset if offset and offset.counter else None

    async def consumers(self, shard: int) -> dict[str, int]:
        """
        The registered consumers and the counters they have committed.
        """
        found = await self._store.link.call("HGETALL", self._key(shard, "consumers"))
        return {
            name.decode(): Offset.of(text.decode()).counter
            for name, text in zip(found[::2], found[1::2], strict=True)
        }

    async def lags(self) -> dict[str, int]:
        """
        How many script calls each registered consumer is behind, over all shards.
        """
        behind: dict[str, int] = {}
        for shard in range(self._store.shards):
            last = await self.last(shard)
            for consumer, counter in (await self.consumers(shard)).items():
                behind[consumer] = behind.get(consumer, 0) + (last.counter - counter if last else 0)
        return behind

    async def forget(self, consumer: str) -> None:
        """
        Let trimming no longer wait for *consumer*.
        """
        for shard in range(self._store.shards):
            await self._store.link.call("HDEL", self._key(shard, "consumers"), consumer)

    async def trim(self, shard: int, limit: int = 100) -> int:
        """
        Remove what every registered consumer has committed.
        """
        keys = [self._key(shard, name) for name in ("meta", "events", "consumers")]
        removed: int = await self._store.link.run("trim", keys, [limit])
        return removed

    async def fill(self, shard: int) -> float:
        """
        How full the stream is against its bound, 0 to 1: consumers should hurry from 0.5 on.
        """
        names = (
            "event_rows",
            "trimmed_rows",
            "max_event_rows",
            "event_bytes",
            "trimmed_bytes",
            "max_event_bytes",
        )
        found = await self._store.link.call("HMGET", self._key(shard, "meta"), *names)
        rows, gone_rows, max_rows, size, gone_size, max_size = (int(value or 0) for value in found)
        if not max_rows:
            return 0.0
        return max((rows - gone_rows) / max_rows, (size - gone_size) / max_size)

    def _key(self, shard: int, name: str) -> str:
        return self._store.keys[shard].fixed[name]
