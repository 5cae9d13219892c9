"""
Live: the newest events of every shard, read once for all who follow; who is behind reads on from the store.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duly.durations import say_time
from duly.errors import EventsLost
from duly.failure import kind_in
from duly.feed import Feed
from duly.job import moment
from duly.offsets import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from duly.events import Event, Offset, Verb
    from duly.offsets import Places
    from duly.store import Store

LISTEN_S = 2.0  #: one wait for news; then every shard is looked at: the server may have been rolled back
IDLE_S = 5.0  #: how often the loop comes round while nobody follows
PAGE = 10  #: script calls that are read at once; each may tell of hundreds of jobs
KEPT_ROWS = 5_000  #: events of each shard that are kept for those who follow closely
READS = 4  #: pages read from the store at once, for those who are behind


class EventView(msgspec.Struct, frozen=True):
    """
    One thing that happened to one job, or with an empty id, to a topic.
    """

    verb: str
    topic: str
    id: str
    at: str
    revision: int
    state: str
    priority: str
    attempt: int
    crashes: int
    due_at: str | None
    lateness_ms: int | None
    run_ms: int | None
    worker: str | None
    reason: str | None
    shard: int
    number: int  #: of the script call that did it, dense within its shard and its epoch
    row: int  #: among what that call did
    epoch: str  #: of the namespace: another one after the server was emptied


def view_of(event: Event) -> EventView:
    """
    Describe an event.
    """
    due = moment(event.due_ms)
    at = moment(event.at_ms)
    return EventView(
        event.verb.value,
        event.topic,
        event.id,
        say_time(at) if at else "",
        event.revision,
        event.state.name,
        event.priority,
        event.attempt,
        event.crashes,
        say_time(due) if due else None,
        event.lateness_ms,
        event.run_ms,
        event.worker or None,
        event.reason or None,
        event.shard,
        event.counter,
        event.row,
        event.epoch,
    )


class Row(NamedTuple):
    """
    An event as it is sent, encoded once for all.
    """

    topic: str
    verb: Verb
    data: bytes
    public: bytes  #: the same for web pages: of a failure the type alone


class Entry(NamedTuple):
    """
    What one script call did.
    """

    offset: Offset
    rows: list[Row]


class Live:
    """
    One reader for all followers, woken by the server.  While nobody follows, nothing is read.
    """

    every_s = 0.0  # it waits by itself

    def __init__(self, store: Store, *, most: int) -> None:
        self.feed = Feed(store)
        self.shards = store.shards
        self.followers = 0
        self._most = most
        self._tails: list[deque[Entry] | None] = [None] * store.shards
        self._rows = [0] * store.shards
        self._looked_s = 0.0  #: when every shard was looked at
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        self._reads = asyncio.Semaphore(READS)

    @property
    def full(self) -> bool:
        """
        Whether no more may follow.
        """
        return self.followers >= self._most

    @contextmanager
    def following(self) -> Iterator[None]:
        """
        Keep the poller going.
        """
        self.followers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self.followers -= 1
            if not self.followers:
                self._wanted.clear()

    @property
    def news(self) -> asyncio.Event:
        """
        Is set when there is more; take it before looking, and nothing falls between look and wait.
        """
        return self._news

    def wake(self) -> None:
        """
        Let everybody look who waits.
        """
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def run_once(self) -> int:
        """
        Wait until there is something new, and read a page of each shard that has some.
        """
        if not self.followers:
            self._tails = [None] * self.shards
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._wanted.wait()
            except TimeoutError:
                return 0
        found = 0
        for shard in await self._shards():
            found += await self._poll(shard)
        if found:
            self.wake()
        return found

    async def _shards(self) -> Iterable[int]:
        """
        The shards with news; all of them where that is not known, or none has had any for some time.
        """
        now_s = time.monotonic()
        if None not in self._tails and now_s - self._looked_s < LISTEN_S:
            after = [tail[-1].offset if tail else None for tail in self._tails]
            if news := await self.feed.news(after, self._looked_s + LISTEN_S - now_s):
                return news
        self._looked_s = time.monotonic()
        return range(self.shards)

    async def _poll(self, shard: int) -> int:
        tail = self._tails[shard]
        if tail is None:
            newest = await self.feed.newest(shard)
            self._tails[shard] = deque([_entry(*newest)] if newest else [])
            self._rows[shard] = len(newest[1]) if newest else 0
            return 1  # it may be news to somebody who looked before it
        try:
            read = await self.feed.entries(shard, tail[-1].offset if tail else None, PAGE + 1)
        except EventsLost:
            # Everybody finds out for themselves how much it is for them.
            self._tails[shard] = None
            return 1
        new = [_entry(*each) for each in read[1 if tail else 0 :]]
        tail.extend(new)
        self._rows[shard] += sum(len(entry.rows) for entry in new)
        while self._rows[shard] > KEPT_ROWS and len(tail) > 1:
            self._rows[shard] -= len(tail.popleft().rows)
        return len(new)

    async def now(self) -> Places:
        """
        Behind everything that has happened.
        """
        last = [await self.feed.last(shard) for shard in range(self.shards)]
        return [None if offset is None else Place(offset) for offset in last]

    def forget(self, shard: int) -> None:
        """
        Have the store asked for what is kept of a shard: it may not be true any more.
        """
        self._tails[shard] = None

    async def after(self, shard: int, place: Place | None) -> list[Entry]:
        """
        Some entries from a place on, those rows left out that were read.

        Raises:
            EventsLost: There is a gap.
        """
        entries = self._kept(shard, place)
        if entries is None:
            async with self._reads:
                offset = place.offset if place else None
                entries = [_entry(*each) for each in await self.feed.entries(shard, offset, PAGE)]
        if place and entries:
            first = entries[0]
            entries = [Entry(first.offset, first.rows[place.rows :]), *entries[1:]]
        return [entry for entry in entries if entry.rows]

    def _kept(self, shard: int, place: Place | None) -> list[Entry] | None:
        """
        What the poller holds from a place on; None where only the store can tell.
        """
        tail = self._tails[shard]
        if tail is None:
            return None
        if not tail:
            return [] if place is None else None
        # Numbers are dense, so that an entry is found by its number.
        at = place.offset.counter - tail[0].offset.counter if place else 1 - tail[0].offset.counter
        if not 0 <= at < len(tail) or (place and tail[at].offset != place.offset):
            return None
        return list(islice(tail, at, at + PAGE))

    async def behind(self, lost: EventsLost) -> tuple[Place | None, int | None]:
        """
        Where to go on behind a gap, and up to which number events are lost, None where nobody knows.
        """
        if lost.first is not None:
            oldest = await self.feed.oldest(lost.shard, 1)
            if oldest:
                return Place(oldest[0][0], 0), oldest[0][0].counter - 1
        last = await self.feed.last(lost.shard)
        return None if last is None else Place(last), None


def _entry(offset: Offset, events: list[Event]) -> Entry:
    return Entry(offset, [_row(event) for event in events])


def _row(event: Event) -> Row:
    view = view_of(event)
    data = public = msgspec.json.encode(view)
    if view.reason is not None and (kind := kind_in(view.reason)) != view.reason:
        public = msgspec.json.encode(msgspec.structs.replace(view, reason=kind))
    return Row(event.topic, event.verb, data, public)
