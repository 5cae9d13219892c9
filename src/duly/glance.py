"""
The queue at a glance: what `duly stats --json` prints and GET /v1/stats answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from duly.durations import say_time
from duly.feed import Feed
from duly.job import JobState, moment
from duly.namespace import ServerFacts, inspect
from duly.runs import RunDocument, Runs
from duly.views import Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from duly.store import Store
    from duly.views import TopicStats, Views


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
    How many work.  An API key that is bound to topics is told of the running jobs of these.
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
    events: EventsDocument | None  #: null for an API key that is bound to topics
    server: ServerDocument | None  #: likewise
    quarantined: int = 0  #: stored jobs that cannot be read
    runs: list[RunDocument] = []  #: the last one of each pipeline
    more_topics: int = 0  #: that are not among the topics here; over HTTP, /v1/topics lists them all


@dataclass(frozen=True, slots=True)
class Glance:
    """
    What was seen.
    """

    namespace: str
    stats: Stats
    now_ms: int
    overdue_ms: list[int | None]  #: of each topic in `stats` that was looked at, from the first on
    lags: dict[str, int]
    fill: float
    facts: ServerFacts | None  #: None where only some topics are looked at
    runs: list[RunDocument] = field(default_factory=list)


async def glance(
    store: Store, views: Views, sees: Callable[[str], bool] | None = None, *, most: int | None = None
) -> Glance:
    """
    Look at everything once, at jobs by *views*: with a record some wait elsewhere.

    With *sees* look at the topics it is true for, and at nothing that is of others; with *most* closely at so
    many of them only.

    Raises:
        StoreUnavailable: The server does not answer.
    """
    feed = Feed(store)
    found = await views.stats()
    now_ms = await views.now_ms()
    if sees is not None:
        found = await _narrowed(store, found, sees, now_ms)
    overdue: list[int | None] = []
    for about in found.topics[:most]:
        since = await views.waiting_since(about.topic) if about.counts["ready"] else None
        overdue.append(None if since is None else max(0, now_ms - since))
    if sees is not None:
        return Glance(store.namespace, found, now_ms, overdue, {}, 0.0, None)
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


async def _narrowed(store: Store, found: Stats, sees: Callable[[str], bool], now_ms: int) -> Stats:
    """
    What concerns some topics: their counters, their next due time, and the workers that take one of them.
    """
    dues: list[int] = []
    for keys in store.keys:
        scored = await store.link.call("ZRANGE", keys.fixed["next_due"], 0, -1, "WITHSCORES")
        pairs = zip(scored[::2], scored[1::2], strict=True)
        dues += [int(float(due_ms)) for topic, due_ms in pairs if sees(topic.decode())]
    next_due_ms = min(dues, default=None)
    return Stats(
        [about for about in found.topics if sees(about.topic)],
        next_due_ms,
        0 if next_due_ms is None else max(0, now_ms - next_due_ms),
        workers_seen(found.workers, sees),
    )


def workers_seen(workers: Iterable[dict[str, Any]], sees: Callable[[str], bool]) -> list[dict[str, Any]]:
    """
    Return the workers that take a topic *sees* is true for, and of each what concerns such topics.

    A worker counts what it does for all of its topics together, so one that takes others is told without its
    counts.
    """
    shown = []
    for worker in workers:
        topics = worker.get("topics", [])
        seen = [topic for topic in topics if sees(topic)]
        if len(seen) == len(topics) > 0:
            shown.append(worker)
        elif seen:
            said = {name: value for name, value in worker.items() if name in _OF_ANY_TOPIC}
            shown.append(said | {"topics": seen})
    return shown


#: What a worker says of itself that tells nothing of its jobs.
_OF_ANY_TOPIC = ("worker", "host", "pid", "concurrency", "silent_ms", "live")


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
    if facts is None:
        # A worker may run jobs of other topics besides.
        running = sum(about.counts["running"] for about in found.topics)
    else:
        running = sum(worker.get("running", 0) for worker in live)
    return StatsDocument(
        seen.namespace,
        [
            TopicNowDocument(**msgspec.structs.asdict(topic_document(about)), overdue_ms=overdue)
            for about, overdue in zip(found.topics, seen.overdue_ms, strict=False)
        ],
        TotalsDocument(
            **{state.name: sum(about.counts[state.name] for about in found.topics) for state in JobState}
        ),
        say_time(next_due) if next_due else None,
        found.overdue_ms,
        WorkersDocument(
            len(live),
            len(found.workers) - len(live),
            running,
            sum(worker.get("concurrency", 0) for worker in live),
        ),
        None if facts is None else EventsDocument(round(seen.fill, 4), seen.lags),
        None if facts is None else _server_document(facts),
        found.quarantined,
        seen.runs,
        len(found.topics) - len(seen.overdue_ms),
    )


def _server_document(facts: ServerFacts) -> ServerDocument:
    return ServerDocument(
        facts.name,
        ".".join(str(part) for part in facts.version),
        facts.uptime_s,
        facts.memory_bytes,
        facts.max_memory_bytes or None,
        facts.clients,
        list(facts.warnings),
    )
