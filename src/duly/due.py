"""
The scheduled jobs of a shard, read: each topic has an index of its own, and lists show them in one order.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from duly.connection import Link
    from duly.keys import ShardKeys

TOPICS_AT_ONCE = 64  #: indexes that one call reads
TOPICS_COUNTED = 100
SCANNED_AT_ONCE = 1_000  #: pairs that one call reads of a hash or an index of topics
FIRST_LOOK = 16  #: members of each of them, where there are many; whoever needs more asks again

Scored = tuple[bytes, bytes]  #: a member and its score


async def scan(link: Link, command: str, key: str, match: str = "*") -> AsyncIterator[list[Scored]]:
    """
    Read a hash or a sorted set by HSCAN or ZSCAN, a bounded number of pairs at a time.

    What stays in it meanwhile is among them, once or several times, if its name is like *match*.
    """
    cursor = b"0"
    while True:
        cursor, found = await link.call(command, key, cursor, "MATCH", match, "COUNT", SCANNED_AT_ONCE)
        yield list(zip(found[::2], found[1::2], strict=True))
        if cursor == b"0":
            return


async def scheduled_topics(link: Link, keys: ShardKeys) -> list[str]:
    """
    The topics with scheduled jobs, the one with the earliest first.
    """
    found: dict[bytes, bytes] = {}
    async for page in scan(link, "ZSCAN", keys.fixed["next_due"]):
        found |= page
    return [name.decode() for name, _ in sorted(found.items(), key=_order)]


async def counted_topics(link: Link, keys: ShardKeys) -> AsyncIterator[set[str]]:
    """
    The topics that the shard keeps counters of, page by page.
    """
    async for page in scan(link, "HSCAN", keys.fixed["topics"]):
        yield {field.decode().partition(":")[0] for field, _ in page}


async def due_scores(
    link: Link, keys: ShardKeys, members: Sequence[bytes] | Sequence[str]
) -> dict[bytes | str, bytes | None]:
    """
    When scheduled jobs are due, by member; None where no index has it.
    """
    by_topic: dict[str, list[bytes | str]] = {}
    for member in members:
        name = member.decode() if isinstance(member, bytes) else member
        by_topic.setdefault(name.partition("/")[0], []).append(member)
    scores: dict[bytes | str, bytes | None] = {}
    for topic, some in by_topic.items():
        scores |= zip(some, await link.call("ZMSCORE", keys.due(topic), *some), strict=True)
    return scores


async def pages_behind(link: Link, indexes: Sequence[str], place: str, limit: int) -> list[list[Scored]]:
    """
    Members of some indexes with their scores, from the one behind *place* on, as they stand at one moment.

    A place is a score and a member; whether that member is still there does not matter.
    """
    score, _, member = (place or "-inf").partition(" ")
    pages = await link.run("page", indexes, [score, member, limit])
    return [list(zip(found[::2], found[1::2], strict=True)) for found in pages]


async def scheduled_behind(
    link: Link, keys: ShardKeys, topics: Iterable[str], place: str, limit: int
) -> list[Scored]:
    """
    Scheduled jobs of *topics* behind a place, soonest first: as many as *limit*, or all there are.
    """
    names = list(topics)
    look = limit if len(names) == 1 else min(limit, FIRST_LOOK)
    found: list[Scored] = []
    short: list[str] = []  #: topics that have more than was read of them
    bound: Scored | None = None  #: what is behind it may not be complete
    for at in range(0, len(names), TOPICS_AT_ONCE):
        some = names[at : at + TOPICS_AT_ONCE]
        for topic, page in zip(
            some, await pages_behind(link, [keys.due(topic) for topic in some], place, look), strict=True
        ):
            found += page
            if len(page) == look < limit:
                short.append(topic)
                bound = page[-1] if bound is None else min(bound, page[-1], key=_order)
    found = heapq.nsmallest(limit, found, key=_order)
    if bound is None or (len(found) == limit and _order(found[-1]) <= _order(bound)):
        return found
    # Few topics have many: those are read whole, as far as this page may go.
    whole = dict(found)
    for topic in short:
        [page] = await pages_behind(link, [keys.due(topic)], place, limit)
        whole |= page
    return heapq.nsmallest(limit, whole.items(), key=_order)


async def count_due(link: Link, keys: ShardKeys, bounds: Sequence[int]) -> list[int]:
    """
    How many scheduled jobs are due from each of *bounds* on and before the next, in milliseconds.

    Only the topics that are due first are counted: every read is bounded.
    """
    upto = ("-inf", f"({bounds[-1]}", "BYSCORE", "LIMIT", 0, TOPICS_COUNTED)
    counts = [0] * (len(bounds) - 1)
    for topic in await link.call("ZRANGE", keys.fixed["next_due"], *upto):
        for at, (start, end) in enumerate(pairwise(bounds)):
            counts[at] += await link.call("ZCOUNT", keys.due(topic.decode()), start, f"({end}")
    return counts


def _order(scored: Scored) -> tuple[float, bytes]:
    return float(scored[1]), scored[0]
