"""
Following events: what happens to jobs, as it happens, from any place on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import EventsLost, UsageError
from duly.events import Verb
from duly.feed import Feed
from duly.job import check_topic
from duly.loops import running_loop
from duly.offsets import ALL, Place, read_places, write_places

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from duly.events import Event, Offset
    from duly.offsets import Places
    from duly.store import Store

PAGE = 10  #: script calls of a shard that are read at once; each may tell of hundreds of jobs
LISTEN_S = 2.0  #: one wait for news; then every shard is looked at: the server may have been rolled back

NOW, START = "now", "start"


class EventFilter:
    """
    Which events a follower sees.
    """

    def __init__(
        self, topics: str | Iterable[str] | None = None, verbs: str | Iterable[str] | None = None
    ) -> None:
        """
        Choose some *topics* and *verbs*; None means all of them.

        Raises:
            UsageError: No topic can be called so, there is no such verb, or nothing was chosen.
        """
        self.topics = frozenset(check_topic(name) for name in _chosen(topics, "topics"))
        words = _chosen(verbs, "verbs")
        for word in words:
            if word not in set(Verb):
                raise UsageError(f"verbs={word!r} must be some of {', '.join(Verb)}")
        self.verbs = frozenset(Verb(word) for word in words)

    def passes(self, topic: str, verb: Verb) -> bool:
        """
        Return whether an event is one of them.
        """
        return (not self.verbs or verb in self.verbs) and (not self.topics or topic in self.topics)


def _chosen(said: str | Iterable[str] | None, what: str) -> list[str]:
    if said is None:
        return []
    if not isinstance(said, str | Iterable):
        raise UsageError(f"{what} must be a name or several of them, not {said!r}")
    chosen = [said] if isinstance(said, str) else list(said)
    if not chosen:
        raise UsageError(f"{what} is empty: name some, or leave it out for all of them")
    return chosen


class Follower(ABC):
    """
    Events as they happen: ``async for event in app.events()``.

    Each shard tells its events in their order; between shards there is none.  A gap raises `EventsLost` once,
    with its range; the same follower asked again goes on behind it.  What is connected is given back when the
    loop is left, however that happens.  A link that is lost is made again from the same place on, for as long
    as every call of the app is repeated, and after that it is `StoreUnavailable`; asked again it tries again.
    """

    def __init__(self, filter_: EventFilter, since: str, wait_s: float | None) -> None:
        self._filter = filter_
        self._since = since
        self._wait_s = wait_s

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        """
        Take the place to begin at: what happens from here on is seen.
        """
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    @abstractmethod
    def offset(self) -> str | None:
        """
        Where to go on behind the last event that was given: ``app.events(since=offset)``, on any face.

        None before the first one was asked for.
        """

    @abstractmethod
    async def begin(self) -> None:
        """
        Take the place to begin at, unless that was done.

        Raises:
            UsageError: The offset is not one that a follower of this queue gave.
            StoreUnavailable: The queue cannot be reached.
        """

    @abstractmethod
    async def next(self) -> Event | None:
        """
        Return the next event; None where none came in the time that was said.

        Raises:
            EventsLost: There is a gap before it.
            StoreUnavailable: The queue was away for too long.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """
        Give back what is connected; asked again, it goes on behind the last event.
        """


class _Ahead(NamedTuple):
    event: Event
    place: Place  #: behind it


class StoreFollower(Follower):
    """
    Events read from the store.  Nothing is connected between two questions.
    """

    def __init__(
        self,
        open_: Callable[[], Awaitable[Store]],
        filter_: EventFilter,
        since: str,
        wait_s: float | None,
    ) -> None:
        super().__init__(filter_, since, wait_s)
        self._open = open_
        self._given: Places | None = None  #: behind what was given
        self._read: Places = []  #: behind what was read
        self._ahead: deque[_Ahead] = deque()
        self._due: deque[int] = deque()  #: the shards to look at, one after the other
        self._looked_s = 0.0  #: when all of them were

    @property
    def offset(self) -> str | None:
        """
        Where to go on behind the last event that was given, and behind what was left out after it.
        """
        return None if self._given is None else write_places(self._given if self._ahead else self._read)

    async def begin(self) -> None:
        """
        Take the place to begin at, unless that was done.
        """
        await self._feed()

    async def aclose(self) -> None:
        """
        Forget what was read ahead: it is read again.
        """
        if self._given is not None:
            self._look_again(self._given if self._ahead else self._read)
            self._ahead.clear()

    async def next(self) -> Event | None:
        """
        Return the next event; None where none came in the time that was said.
        """
        loop = running_loop()
        end = None if self._wait_s is None else loop.time() + self._wait_s
        bound: list[Offset | None] | None = None
        while not self._ahead:
            feed = await self._feed()
            if bound is None and end is not None and loop.time() >= end:
                # What is there by now is still to come; what happens meanwhile is not waited for.
                bound = [await feed.last(shard) for shard in range(len(self._read))]
                places = [last and Place(last) for last in bound]
                self._due = deque(shard for shard, last in enumerate(places) if self._read[shard] != last)
            elif loop.time() - self._looked_s >= LISTEN_S:
                # Also where some shards have so much news that the others are never waited for.
                self._due.extend(shard for shard in range(len(self._read)) if shard not in self._due)
                self._looked_s = loop.time()
            if self._due:
                await self._look(feed, self._due[0])
                if bound is not None:
                    self._due = deque(shard for shard in self._due if self._is_before(shard, bound[shard]))
            elif bound is not None:
                return None
            else:
                left_s = LISTEN_S if end is None else min(end - loop.time(), LISTEN_S)
                news = await feed.news([place and place.offset for place in self._read], left_s)
                self._due = deque(sorted(news))
        event, place = self._ahead.popleft()
        self._given_places()[event.shard] = place
        return event

    def _is_before(self, shard: int, last: Offset | None) -> bool:
        place = self._read[shard]
        return last is not None and (place is None or place.offset.counter < last.counter)

    def _given_places(self) -> Places:
        assert self._given is not None  # noqa: S101  # it has begun
        return self._given

    async def _feed(self) -> Feed:
        store = await self._open()
        feed = Feed(store)
        if self._given is None:
            if self._since == START:
                places: Places = [None] * store.shards
            elif self._since == NOW:
                last = [await feed.last(shard) for shard in range(store.shards)]
                places = [offset and Place(offset) for offset in last]
            else:
                places = read_places(self._since, store.shards, "since")
            self._given = places
            self._look_again(places)
        return feed

    def _look_again(self, places: Places) -> None:
        self._read = list(places)
        self._due = deque(range(len(places)))

    async def _look(self, feed: Feed, shard: int) -> None:
        """
        Read a page of a shard.
        """
        place = self._read[shard]
        # The entry at a place is read again.
        limit = PAGE if place is None else PAGE + 1
        # Everything before was given, or left out.
        self._given = list(self._read)
        try:
            entries = await feed.entries(shard, place.offset if place else None, limit)
        except EventsLost as lost:
            self._read[shard] = await _behind(feed, lost)
            raise _told(lost, place) from None
        self._due.popleft()
        if len(entries) == limit:
            self._due.append(shard)
        for offset, events in entries:
            begun = place.rows if place and place.offset == offset else 0
            for number, event in enumerate(events[begun:], begun + 1):
                if self._filter.passes(event.topic, event.verb):
                    rows = ALL if number == len(events) else number
                    self._ahead.append(_Ahead(event, Place(offset, rows)))
            self._read[shard] = Place(offset)


async def _behind(feed: Feed, lost: EventsLost) -> Place | None:
    """
    Where to go on behind a gap: at the oldest event there is, or from now on where nobody knows what is gone.
    """
    if lost.first is not None:
        oldest = await feed.oldest(lost.shard, 1)
        if oldest:
            return Place(oldest[0][0], 0)
    last = await feed.last(lost.shard)
    return last and Place(last)


def _told(lost: EventsLost, place: Place | None) -> EventsLost:
    """
    The same gap for a reader who had read a part of an entry: the rest of it is gone, too.
    """
    if place is None or place.rows == ALL:
        return lost
    before = place.offset._replace(counter=place.offset.counter - 1)
    return EventsLost(lost.shard, before, lost.first, lost.why)
