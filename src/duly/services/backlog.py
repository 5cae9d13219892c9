"""
The topics that have work, for a worker with too many topics or shards to ask each of them.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from duly.store import Store

NAMED = 32  #: topics that one claim names at most
CHOSEN = 8  #: of those that have something, if these fill a claim: each brings keys and commands
LISTENED = 256  #: wake lists that one wait listens to at most
SCAN_S = 1.0  #: how often every shard is looked through, because a message may be lost
ASK_S = 4.0  #: how often every shard is asked: after 10 s it forgets who listens
PAGE = 1000


class Backlog:
    """
    The topics of a worker that have something to claim, by shard, as far as it was told.
    """

    def __init__(self, store: Store, topics: Callable[[], Collection[str]]) -> None:
        self._store = store
        self._topics = topics
        self._known: list[set[str]] = [set() for _ in range(store.shards)]
        self._chosen = [CHOSEN] * store.shards  #: topics that the next claim names
        self._places: list[bytes] = []  #: in the streams of woken topics
        self._asked_s = [float("-inf")] * store.shards  #: when the last claim was made there
        self._scanned_s = float("-inf")

    @property
    def is_broad(self) -> bool:
        """
        Whether there are more topics and shards than can be asked and listened to each time.
        """
        count = len(self._topics())
        return count > NAMED or count * self._store.shards > LISTENED

    def shards(self) -> list[int]:
        """
        The shards that have something, and those that have not been asked for long.
        """
        old_s = time.monotonic() - ASK_S
        return [shard for shard, known in enumerate(self._known) if known or self._asked_s[shard] < old_s]

    def known(self, shard: int) -> list[str]:
        """
        All topics that have something.
        """
        return list(self._known[shard])

    def choose(self, shard: int) -> list[str]:
        """
        Topics for one claim: a few of those that have something, by chance, so that none starves.
        """
        known, chosen = self._known[shard] or self._topics(), self._chosen[shard]
        return list(known) if len(known) <= chosen else random.sample(tuple(known), chosen)

    def note(self, shard: int, named: Iterable[str], rest: Iterable[str], *, full: bool) -> None:
        """
        Take over what a claim left of the topics that it named, and whether it was *full*.

        Topics with a few jobs each do not fill a claim that names a few of them, so the next one names more.
        """
        self._asked_s[shard] = time.monotonic()
        self._chosen[shard] = CHOSEN if full else min(2 * self._chosen[shard], NAMED)
        self._known[shard].difference_update(named)
        self._known[shard].update(rest)

    def add(self, shard: int, topics: Iterable[str]) -> None:
        """
        Take over topics that were made ready; those of other workers do not count.
        """
        mine = self._topics()
        self._known[shard].update(topic for topic in topics if topic in mine)

    async def refresh(self) -> None:
        """
        Look through every shard, unless that was done a moment ago.
        """
        if time.monotonic() - self._scanned_s < SCAN_S:
            return
        self._scanned_s = time.monotonic()
        if not self._places:
            # Before the first look, so that nothing is missed between the two.
            self._places = [await self._store.woken_place(shard) for shard in range(self._store.shards)]
        for shard in range(self._store.shards):
            async for topics in self._store.ready_topics(shard, PAGE):
                self.add(shard, topics)

    async def wait(self, seconds: float) -> bool:
        """
        Wait until topics are made ready, at most *seconds*; True if some were that this worker has.
        """
        told = await self._store.wait_broadly(self._places, seconds)
        for shard, place, topics in told:
            self._places[shard] = place
            self.add(shard, topics)
        return any(self._known)
