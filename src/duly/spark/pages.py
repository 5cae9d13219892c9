"""
Pages of a scan: which members, then what is known of them, then Arrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from duly.due import counted_topics, due_scores, pages_behind, scheduled_topics
from duly.job import JobState, Lane
from duly.keys import ShardKeys
from duly.records import is_readable, worker_id
from duly.spark.columns import JOBS, arrow
from duly.spark.rows import arrays_of, row_of
from duly.spark.sending import Loop
from duly.views import place_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from duly.connection import Link
    from duly.spark.options import ScanOptions
    from duly.spark.rows import Row

    #: Makes a row of a member, what `_look` asked about it, the names of workers, and the shard.
    Maker = Callable[[bytes, Sequence[bytes], Mapping[bytes, str], int], Row]

#: Where the members of a state are listed; those that are ready stand in streams.
INDEX = {
    "scheduled": "due",
    "ready": "",
    "running": "leases",
    "succeeded": "done",
    "cancelled": "done",
    "dead": "dead",
}
SPLIT = 20_000  #: members that are worth a second task

Found = list[tuple[bytes, bytes | None]]  #: members, with their records where they are known already


@dataclass(frozen=True, slots=True)
class Part:
    """
    What one task reads: of one shard, either an index between two scores, or the ready jobs of one topic, or
    some slots of the table of all jobs.
    """

    shard: int
    states: tuple[int, ...] = ()  #: empty means all
    index: str = ""
    low: float = -math.inf
    high: float = math.inf  #: exclusive
    topics: tuple[str, ...] = ()  #: whose scheduled or ready jobs it reads
    slot: int = 0  #: of `slots`, a power of two
    slots: int = 1


async def parts_of(
    link: Link,
    options: ScanOptions,
    shards: int,
    states: set[JobState] | None,
    topics: set[str] | None,
    due_ms: tuple[float, float],
) -> list[Part]:
    """
    Cut a scan into parts of a similar size.
    """
    parts: list[Part] = []
    for shard in range(shards):
        shard_keys = ShardKeys(options.namespace, shard)
        keys = shard_keys.fixed
        if states is None:
            size = await link.call("HLEN", keys["jobs"])
            slots = 1 << max(0, min(size // SPLIT, options.ranges)).bit_length() - 1 if size >= SPLIT else 1
            parts += [Part(shard, slot=slot, slots=slots) for slot in range(slots)]
            continue
        for index in sorted({INDEX[state.name] for state in states} - {"", "due"}):
            own = tuple(int(state) for state in sorted(states) if INDEX[state.name] == index)
            for start, end in await _ranges(link, keys[index], options.ranges, -math.inf, math.inf):
                parts.append(Part(shard, own, index, start, end))
        if JobState.scheduled in states:
            named = await scheduled_topics(link, shard_keys)
            chosen = [name for name in named if topics is None or name in topics]
            parts += await _scheduled_parts(link, shard_keys, chosen, options.ranges, due_ms)
        if JobState.ready in states:
            names = {name async for some in counted_topics(link, shard_keys) for name in some}
            for topic in sorted(names if topics is None else names & topics):
                parts.append(Part(shard, (int(JobState.ready),), topics=(topic,)))
    return parts


async def _scheduled_parts(
    link: Link, keys: ShardKeys, topics: list[str], most: int, due_ms: tuple[float, float]
) -> list[Part]:
    """
    Topics with many scheduled jobs in ranges of their own, those with few together.
    """
    states = (int(JobState.scheduled),)
    parts: list[Part] = []
    few: list[str] = []
    together = 0
    for topic in topics:
        size = await link.call("ZCARD", keys.due(topic))
        if size >= SPLIT:
            for start, end in await _ranges(link, keys.due(topic), most, *due_ms):
                parts.append(Part(keys.shard, states, "due", start, end, (topic,)))
            continue
        few.append(topic)
        together += size
        if together >= SPLIT:
            parts.append(Part(keys.shard, states, "due", *due_ms, tuple(few)))
            few, together = [], 0
    if few:
        parts.append(Part(keys.shard, states, "due", *due_ms, tuple(few)))
    return parts


async def _ranges(link: Link, key: str, most: int, low: float, high: float) -> list[tuple[float, float]]:
    size = await link.call("ZCOUNT", key, low, f"({high}")
    count = max(1, min(most, size // SPLIT))
    before = await link.call("ZCOUNT", key, "-inf", f"({low}")
    bounds = [low]
    for at in range(1, count):
        rank = before + size * at // count
        found = await link.call("ZRANGE", key, rank, rank, "WITHSCORES")
        if found and float(found[1]) > bounds[-1]:
            bounds.append(float(found[1]))
    return list(zip(bounds, [*bounds[1:], high], strict=True))


def read_part(
    options: ScanOptions,
    part: Part,
    topics: set[str] | None,
    columns: StructType = JOBS,
    make: Maker = row_of,
) -> Iterator[pa.RecordBatch]:
    """
    Read one part, page by page; the next page is fetched while one is made into rows.
    """
    loop = Loop(options.url)
    schema = arrow(columns)
    try:
        pages = _rows(loop.link, options, part, topics, make)
        coming = loop.start(anext(pages, None))
        while (rows := coming.result()) is not None:
            coming = loop.start(anext(pages, None))
            if rows:
                yield pa.RecordBatch.from_arrays(arrays_of(rows, schema), schema=schema)
    finally:
        loop.close()


async def _rows(
    link: Link, options: ScanOptions, part: Part, topics: set[str] | None, make: Maker
) -> AsyncIterator[list[Row]]:
    shard = ShardKeys(options.namespace, part.shard)
    if part.index:
        pages = _indexed(link, shard, part, options.page)
    elif part.topics:
        pages = _ready(link, shard, part, options.page)
    else:
        pages = _all(link, shard, part, options.page)
    told = await link.call("HKEYS", ShardKeys(options.namespace, 0).fixed["workers"])
    workers = {worker_id(name.decode()): name.decode() for name in told}
    wanted = None if topics is None else {topic.encode() for topic in topics}
    async for page in pages:
        mine = [each for each in page if wanted is None or each[0].partition(b"/")[0] in wanted]
        yield await _look(link, shard, mine, part.states, workers, make) if mine else []


async def _all(link: Link, shard: ShardKeys, part: Part, page: int) -> AsyncIterator[Found]:
    """
    Walk through some slots of the table of all jobs.

    The server counts its cursor from the highest bit down, so that all cursors with the same lowest bits
    follow each other: a walk from the first of them to the first of the next visits just those slots.
    """
    cursor, end = first_cursor(part.slot, part.slots), first_cursor(part.slot + 1, part.slots)
    count = page
    while True:
        answer, items = await link.call("HSCAN", shard.fixed["jobs"], cursor, "COUNT", count)
        after = int(answer)
        beyond = after != end and (after == 0 or after % part.slots != cursor % part.slots)
        if beyond and count > 1:
            # It went into the slots of the next part: come nearer to the end in smaller steps.
            count = max(1, count // 4)
            continue
        if beyond:
            # One step finds one slot with jobs in it, and this is not ours.
            return
        yield list(zip(items[::2], items[1::2], strict=True))
        if after == end:
            return
        cursor = after


def first_cursor(slot: int, slots: int) -> int:
    """
    Where the walk through a part of the table begins; 0 behind the last part, where the server ends.
    """
    bits = slots.bit_length() - 1
    return int(f"{slot:0{bits}b}"[::-1], 2) if bits and slot < slots else 0


async def _indexed(link: Link, shard: ShardKeys, part: Part, page: int) -> AsyncIterator[Found]:
    for index in [shard.due(topic) for topic in part.topics] or [shard.fixed[part.index]]:
        place = f"{part.low} "
        while True:
            [found] = await pages_behind(link, [index], place, page)
            yield [(member, None) for member, score in found if float(score) < part.high]
            if len(found) < page or float(found[-1][1]) >= part.high:
                break
            place = place_of(*found[-1])


async def _ready(link: Link, shard: ShardKeys, part: Part, page: int) -> AsyncIterator[Found]:
    [topic] = part.topics
    for lane in Lane:
        after = "-"
        while True:
            entries = await link.call("XRANGE", shard.stream(topic, lane), after, "+", "COUNT", page)
            yield [(fields[1], None) for _, fields in entries]
            if len(entries) < page:
                break
            after = f"({entries[-1][0].decode()}"


async def _look(
    link: Link,
    at_shard: ShardKeys,
    found: Found,
    states: tuple[int, ...],
    workers: dict[bytes, str],
    make: Maker,
) -> list[Row]:
    """
    What is known of some members; those that are gone, damaged or in another state meanwhile are left out.
    """
    if found[0][1] is None:
        found = await _records(link, at_shard, [member for member, _ in found])
    rows: list[Row] = []
    while there := [
        (member, record)
        for member, record in found
        if record is not None and is_readable(member, record) and (not states or record[0] & 7 in states)
    ]:
        about = await _about(link, at_shard, there)
        after = await _records(link, at_shard, [member for member, _ in there])
        found = []
        for (member, record), each, now in zip(there, about, after, strict=True):
            if now == (member, record):
                rows.append(make(member, each, workers, at_shard.shard))
            else:
                # Its state would be of one moment and its times of another: look at it again.
                found.append(now)
    return rows


async def _records(link: Link, shard: ShardKeys, members: list[bytes]) -> Found:
    return list(zip(members, await link.call("HMGET", shard.fixed["jobs"], *members), strict=True))


async def _about(link: Link, shard: ShardKeys, there: list[tuple[bytes, bytes]]) -> list[list[bytes]]:
    """
    What `get` would answer, in few calls for many jobs.
    """
    members = [member for member, _ in there]
    scheduled = [at for at, (_, record) in enumerate(there) if record[0] & 7 == JobState.scheduled]
    apart = [at for at, (_, record) in enumerate(there) if record[0] >= 128]
    begun = [at for at, (_, record) in enumerate(there) if record[0] & 64]
    running = [at for at, (_, record) in enumerate(there) if record[0] & 7 == JobState.running]
    about = [[record, b"", b"", b"", b"", b""] for _, record in there]
    for slot, command, key, places in (
        (1, "HMGET", "bodies", apart),
        (2, "HMGET", "outcomes", begun),
        (3, "HMGET", "progress", begun),
        (5, "ZMSCORE", "leases", running),
    ):
        if places:
            values = await link.call(command, shard.fixed[key], *(members[at] for at in places))
            for at, value in zip(places, values, strict=True):
                about[at][slot] = value or b""
    scores = await due_scores(link, shard, [members[at] for at in scheduled])
    for at in scheduled:
        about[at][4] = scores[members[at]] or b""
    return about
