"""
The queue at a glance: what `duly stats --json` prints and GET /v1/stats answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from duly.durations import say_time
from duly.feed import Feed
from duly.job import JobState, moment
from duly.namespace import ServerFacts, inspect
from duly.runs import RunDocument, Runs
from duly.views import Stats, TopicStats, Views

if TYPE_CHECKING:
    from duly.store import Store


class TopicDocument(msgspec.Struct, kw_only=True):
    """
    A topic, with how many jobs are in which state.
    """

    topic: str
    scheduled: int = 0
    ready: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    paused: bool = False
    limit: int | None = None
    workers: int = 0
    callback: str | None = None  #: where its jobs are delivered instead of run


class TopicNowDocument(TopicDocument, kw_only=True):
    """
    A topic, and how long the oldest of its ready jobs has waited.
    """

    overdue_ms: int | None


class TotalsDocument(msgspec.Struct):
    """
    Jobs of all topics.
    """

    scheduled: int
    ready: int
    running: int
    succeeded: int
    dead: int
    cancelled: int


class WorkersDocument(msgspec.Struct):
    """
    How many work.
    """

    live: int
    silent: int
    running: int
    slots: int


class EventsDocument(msgspec.Struct):
    """
    The event stream: how full it is, 0 to 1, and how many script calls each consumer is behind.
    """

    fill: float
    consumers: dict[str, int]


class ServerDocument(msgspec.Struct):
    """
    The server.
    """

    name: str
    version: str
    uptime_s: int
    memory_bytes: int
    max_memory_bytes: int | None
    clients: int
    warnings: list[str]


class StatsDocument(msgspec.Struct):
    """
    The queue at a glance.
    """

    namespace: str
    topics: list[TopicNowDocument]
    totals: TotalsDocument
    next_due_at: str | None
    unpromoted_ms: int
    workers: WorkersDocument
    events: EventsDocument
    server: ServerDocument
    quarantined: int = 0  #: stored jobs that cannot be read
    runs: list[RunDocument] = []  #: the last one of each pipeline


@dataclass(frozen=True, slots=True)
class Glance:
    """
    What was seen.
    """

    namespace: str
    stats: Stats
    now_ms: int
    overdue_ms: list[int | None]  #: of each topic in `stats`
    lags: dict[str, int]
    fill: float
    facts: ServerFacts
    runs: list[RunDocument] = field(default_factory=list)


async def glance(store: Store) -> Glance:
    """
    Look at everything once.

    Raises:
        StoreUnavailable: The server does not answer.
    """
    views, feed = Views(store), Feed(store)
    found = await views.stats()
    now_ms = await views.now_ms()
    overdue: list[int | None] = []
    for about in found.topics:
        since = await views.waiting_since(about.topic) if about.counts["ready"] else None
        overdue.append(None if since is None else max(0, now_ms - since))
    fill = max([await feed.fill(shard) for shard in range(store.shards)])
    return Glance(
        store.namespace,
        found,
        now_ms,
        overdue,
        await feed.lags(),
        fill,
        await inspect(store.link),
        await Runs(store).all(),
    )


def topic_document(about: TopicStats) -> TopicDocument:
    """
    A topic as it is told to programs.
    """
    return TopicDocument(
        topic=about.topic,
        **about.counts,
        paused=about.paused,
        limit=about.limit,
        workers=about.workers,
        callback=about.callback,
    )


def stats_document(seen: Glance) -> StatsDocument:
    """
    Everything as it is told to programs.
    """
    found, facts = seen.stats, seen.facts
    live = [worker for worker in found.workers if worker["live"]]
    next_due = moment(found.next_due_ms)
    return StatsDocument(
        seen.namespace,
        [
            TopicNowDocument(**msgspec.structs.asdict(topic_document(about)), overdue_ms=overdue)
            for about, overdue in zip(found.topics, seen.overdue_ms, strict=True)
        ],
        TotalsDocument(
            **{state.name: sum(about.counts[state.name] for about in found.topics) for state in JobState}
        ),
        say_time(next_due) if next_due else None,
        found.overdue_ms,
        WorkersDocument(
            len(live),
            len(found.workers) - len(live),
            sum(worker.get("running", 0) for worker in live),
            sum(worker.get("concurrency", 0) for worker in live),
        ),
        EventsDocument(round(seen.fill, 4), seen.lags),
        ServerDocument(
            facts.name,
            ".".join(str(part) for part in facts.version),
            facts.uptime_s,
            facts.memory_bytes,
            facts.max_memory_bytes or None,
            facts.clients,
            list(facts.warnings),
        ),
        found.quarantined,
        seen.runs,
    )
