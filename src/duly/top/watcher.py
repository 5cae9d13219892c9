"""
The watcher: asks the server what there is to see, at a cost that has a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.feed import EventsLost, Feed
from duly.top.snapshot import Snapshot, Topic, WorkerRow
from duly.top.window import SPAN_S, Window
from duly.views import Views

if TYPE_CHECKING:
    from duly.events import Event, Offset
    from duly.store import Store

MINUTES = 10  #: how far ahead due jobs are counted
ENTRIES = 500  #: script calls whose events one look reads, at most, on each shard
WAITING_TOPICS = 3  #: topics whose longest waiting job is looked for: those with most ready jobs


class Watcher:
    """
    Looks at one namespace again and again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._views = Views(store)
        self._feed = Feed(store)
        self._window = Window()
        self._offsets: dict[int, Offset | None] = {}
        self._seen_ms: dict[int, int] = {}

    async def look(self) -> Snapshot:
        """
        See how things are now.

        Raises:
            StoreUnavailable: The server does not answer.
        """
        store, views = self._store, self._views
        now_ms = await views.now_ms()
        for shard in range(store.shards):
            events, weight = await self._read(shard, now_ms)
            self._window.add(events, weight)
            if events:
                self._seen_ms[shard] = events[-1].at_ms
        self._window.forget(now_ms)
        stats = await views.stats()
        topics = [
            Topic(
                each.topic,
                each.counts["scheduled"],
                each.counts["ready"],
                each.counts["running"],
                each.counts["dead"],
                each.workers,
                each.paused,
            )
            for each in stats.topics
        ]
        topics.sort(key=lambda each: (-(each.ready + each.running), -each.scheduled, each.topic))
        overdue_ms, overdue_topic = await self._overdue(now_ms, topics)
        if stats.overdue_ms > overdue_ms:
            overdue_ms, overdue_topic = stats.overdue_ms, ""
        return Snapshot(
            at_ms=now_ms,
            place=store.link.place,
            namespace=store.namespace,
            lateness=self._window.lateness(),
            rates=self._window.rates(now_ms),
            sampled=self._window.sampled(now_ms),
            topics=tuple(topics),
            due=tuple(await views.due_counts([now_ms + minute * 60_000 for minute in range(MINUTES + 1)])),
            overdue_ms=overdue_ms,
            overdue_topic=overdue_topic,
            workers=tuple(
                WorkerRow(
                    worker["worker"],
                    worker.get("pid", 0),
                    worker.get("host", ""),
                    worker.get("running", 0),
                    worker.get("concurrency", 0),
                    worker["silent_ms"],
                    worker["live"],
                )
                for worker in sorted(stats.workers, key=lambda each: (not each["live"], each["worker"]))
            ),
            failures=self._window.failures(now_ms),
        )

    async def _read(self, shard: int, now_ms: int) -> tuple[list[Event], float]:
        """
        Events since the last look; where there are too many, the first of them stand for all.
        """
        if shard not in self._offsets:
            return await self._begin(shard, now_ms), 1.0
        before = self._offsets[shard]
        try:
            after, events = await self._feed.read(shard, before, limit=ENTRIES)
        except EventsLost:
            # Trimmed meanwhile, or another server: what there is now is what counts.
            return await self._begin(shard, now_ms), 1.0
        self._offsets[shard] = after
        read = (after.counter if after else 0) - (before.counter if before else 0)
        if read < ENTRIES:
            return events, 1.0
        last = await self._feed.last(shard)
        if last is None or after is None or last.counter <= after.counter:
            return events, 1.0
        self._offsets[shard] = last
        self._window.sample(now_ms)
        return events, (read + last.counter - after.counter) / read

    async def _begin(self, shard: int, now_ms: int) -> list[Event]:
        """
        The newest events, as far back as one look may read, without those that were seen.
        """
        self._offsets[shard], events = await self._feed.latest(shard, limit=ENTRIES)
        if events and events[0].counter > 1 and events[0].at_ms > now_ms - SPAN_S * 1000:
            self._window.begin(events[0].at_ms)
        seen_ms = self._seen_ms.get(shard, 0)
        return [event for event in events if event.at_ms > seen_ms]

    async def _overdue(self, now_ms: int, topics: list[Topic]) -> tuple[int, str]:
        """
        How long the ready job waits that has waited the longest, and its topic.
        """
        waiting = sorted(
            (each for each in topics if each.ready and not each.paused), key=lambda each: -each.ready
        )
        worst = (0, "")
        for topic in waiting[:WAITING_TOPICS]:
            since_ms = await self._views.waiting_since(topic.topic)
            if since_ms is not None:
                worst = max(worst, (now_ms - since_ms, topic.topic))
        return worst
