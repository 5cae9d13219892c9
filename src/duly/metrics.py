"""
Metrics for Prometheus: what this process did, and how the queue stands.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple
from weakref import WeakSet

from duly import exposition
from duly.errors import DulyError, UsageError
from duly.extras import needed
from duly.feed import Feed
from duly.idempotency import callers_of, entries_of

with needed("duly.metrics"):
    from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from duly.app import Duly
    from duly.idempotency import Used
    from duly.services.crew import Crew
    from duly.services.running import Run
    from duly.views import Stats

LATENESS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
RUN_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
READ_S = 3.0  #: how long a scrape waits for the store
FRESH_S = 5.0  #: how long what was read serves further scrapes
TOPICS = 100  #: topics whose next jobs are looked at


@dataclass(frozen=True, slots=True)
class Metric:
    """
    One metric: as it is exposed, and as the documentation lists it.
    """

    name: str
    kind: Literal["histogram", "counter", "gauge"]
    labels: tuple[str, ...]
    text: str
    of: Literal["process", "queue"]  #: sum what is of a process; of the queue, every process says the same


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "duly_job_lateness_seconds",
            "histogram",
            ("topic",),
            "From due, or the end of a pause, to the start of the handler.",
            "process",
        ),
        Metric(
            "duly_job_run_seconds",
            "histogram",
            ("topic",),
            "How long handlers ran, middleware included.",
            "process",
        ),
        Metric(
            "duly_verbs_total",
            "counter",
            ("verb", "topic"),
            "Jobs that this process has enqueued, replaced, claimed, acked, retried, buried or released.",
            "process",
        ),
        Metric(
            "duly_fenced_total",
            "counter",
            ("topic",),
            "Runs whose outcome did not count: the lease was lost, or the job was cancelled or replaced.",
            "process",
        ),
        Metric(
            "duly_recovered_total",
            "counter",
            ("end",),
            "Jobs whose lease ran out, found by this process: made ready again, or buried as crashed.",
            "process",
        ),
        Metric(
            "duly_http_requests_total",
            "counter",
            ("operation", "status"),
            "Requests that `duly serve` has answered, by the name of the operation in OpenAPI.",
            "process",
        ),
        Metric(
            "duly_http_request_seconds",
            "histogram",
            ("operation",),
            "From a request to the beginning of its answer; those that wait for a job wait here, too.",
            "process",
        ),
        Metric(
            "duly_running_jobs",
            "gauge",
            (),
            "Jobs that this process is running or storing the outcome of.",
            "process",
        ),
        Metric(
            "duly_loop_age_seconds",
            "gauge",
            ("loop",),
            "Since a loop of the worker last came round; the worker ends itself at the setting `stall`.",
            "process",
        ),
        Metric("duly_store_up", "gauge", (), "Whether the store answered this scrape, 1 or 0.", "queue"),
        Metric(
            "duly_queue_jobs",
            "gauge",
            ("topic", "state"),
            "Jobs in each state; ended ones until pruned.",
            "queue",
        ),
        Metric(
            "duly_queue_oldest_overdue_seconds",
            "gauge",
            ("topic",),
            "Since the ready jobs that are next in line were due, the oldest of them; 0 if none is ready.",
            "queue",
        ),
        Metric(
            "duly_queue_promotion_lag_seconds",
            "gauge",
            (),
            "Since the earliest scheduled job was due: more than five seconds mean that no timer runs.",
            "queue",
        ),
        Metric(
            "duly_queue_workers", "gauge", ("topic",), "Live workers that take jobs of the topic.", "queue"
        ),
        Metric("duly_queue_paused", "gauge", ("topic",), "Whether the topic is paused, 1 or 0.", "queue"),
        Metric(
            "duly_events_fill_ratio",
            "gauge",
            ("shard",),
            "How full the event stream is; consumers lose events at 1.",
            "queue",
        ),
        Metric(
            "duly_quarantined_jobs",
            "gauge",
            (),
            "Stored jobs that cannot be read: `duly jobs quarantine ls` lists them.",
            "queue",
        ),
        Metric(
            "duly_replies_dropped_total",
            "counter",
            (),
            "Replies that were dropped unread: too many for their queue, or older than a day.",
            "queue",
        ),
        Metric(
            "duly_idempotency_bytes",
            "gauge",
            (),
            "Bytes kept of requests with an Idempotency-Key; with a record, as of the last minute.",
            "queue",
        ),
        Metric(
            "duly_idempotency_fill_ratio",
            "gauge",
            (),
            "How full the share of the fullest caller is; its new keys are refused at 1.",
            "queue",
        ),
    )
}

#: Those that the client library keeps; the others are made when they are asked for.
_COUNTED = (
    "duly_job_lateness_seconds",
    "duly_job_run_seconds",
    "duly_verbs_total",
    "duly_fenced_total",
    "duly_http_requests_total",
    "duly_http_request_seconds",
)


class _Queue(NamedTuple):
    """
    How the queue stood when it was read.
    """

    stats: Stats
    overdue_s: dict[str, float]
    fill: list[float]
    replies_dropped: int
    keys: Used  #: of requests that may be sent again


_all: WeakSet[Metrics] = WeakSet()  #: of this process


def _after_fork() -> None:
    # Whoever held it when the process was forked does not exist in the child.
    for each in list(_all):
        each.renew_lock()


os.register_at_fork(after_in_child=_after_fork)


class Metrics(Collector):
    """
    The metrics of one app in one process.

    What the process does is counted as it happens.  How the queue stands is read from the store when it is
    scraped, for at most `READ_S`, and serves all scrapes of the next *fresh_s*.
    """

    def __init__(
        self,
        app: Duly,
        registry: CollectorRegistry | None = None,
        *,
        queue: bool = True,
        fresh_s: float = FRESH_S,
    ) -> None:
        """
        Begin to count, in *registry* or in one of its own; without *queue*, leave the store alone.

        Raises:
            UsageError: The app or the registry has these metrics already.
        """
        if app.hooks.meter is not None:
            raise UsageError("this app has metrics already: use those, there can be one set for each app")
        self.registry = CollectorRegistry() if registry is None else registry
        self._app = app
        self._with_queue = queue
        self._fresh_s = fresh_s
        self._crews: list[Crew] = []
        #: By operation and status: to find a metric by its labels costs more than to count.
        self._served: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.renew_lock()
        _all.add(self)
        self._read_at = float("-inf")
        self._queue: _Queue | None = None
        try:
            self._lateness = self._histogram("duly_job_lateness_seconds", LATENESS_S)
            self._run = self._histogram("duly_job_run_seconds", RUN_S)
            self._verbs = self._counter("duly_verbs_total")
            self._fenced = self._counter("duly_fenced_total")
            self._requests = self._counter("duly_http_requests_total")
            self._request_s = self._histogram("duly_http_request_seconds", REQUEST_S)
            self.registry.register(self)
        except ValueError as error:
            raise UsageError(
                f"the registry has metrics of duly already: use another one for each app ({error})"
            ) from error
        app.hooks.meter = self

    def renew_lock(self) -> None:
        """
        Begin with a lock that nobody holds.
        """
        self._reading = threading.Lock()

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        metric = METRICS[name]
        return Histogram(name, metric.text, metric.labels, registry=self.registry, buckets=buckets)

    def _counter(self, name: str) -> Counter:
        metric = METRICS[name]
        return Counter(name, metric.text, metric.labels, registry=self.registry)

    # -- told by the app and its worker -------------------------------------------------------------------

    def enqueued(self, topic: str, word: str, count: int = 1) -> None:
        """
        Count jobs that were sent; *word* is the store's answer.
        """
        if word != "kept":
            self._verbs.labels("replaced" if word == "replaced" else "enqueued", topic).inc(count)

    def claimed(self, run: Run) -> None:
        """
        Count a run that is to begin.
        """
        self._verbs.labels("claimed", run.lease.key.topic).inc()

    def ended(self, run: Run) -> None:
        """
        Count a run whose outcome is stored or does not count.
        """
        topic = run.lease.key.topic
        if run.verb == "fenced":
            self._fenced.labels(topic).inc()
        elif run.verb:
            self._verbs.labels(run.verb, topic).inc()
        if run.started_s:
            self._lateness.labels(topic).observe(run.late_s())
            self._run.labels(topic).observe(max(0.0, run.freed_s - run.started_s))

    def served(self, operation: str, status: int, seconds: float) -> None:
        """
        Count a request that is answered.
        """
        known = self._served.get((operation, status))
        if known is None:
            requests = self._requests.labels(operation, str(status))
            known = self._served[operation, status] = requests, self._request_s.labels(operation)
        requests, request_s = known
        requests.inc()
        request_s.observe(seconds)

    def working(self, crew: Crew) -> None:
        """
        Watch the loops of a worker.
        """
        self._crews.append(crew)

    # -- asked by Prometheus ------------------------------------------------------------------------------

    def describe(self) -> Iterable[Family]:
        """
        Name what is made when it is asked for, so that registering asks for nothing.
        """
        return [_family(name) for name in METRICS if name not in _COUNTED]

    def collect(self) -> Iterator[Family]:
        """
        Everything that is read rather than counted.
        """
        yield from self._of_process()
        if not self._with_queue:
            return
        queue = self._look()
        yield _family("duly_store_up", [((), float(queue is not None))])
        if queue is not None:
            yield from _of_queue(queue)

    def _of_process(self) -> Iterator[Family]:
        recoverers = [each for crew in self._crews for each in crew.recoverers]
        yield _family(
            "duly_recovered_total",
            [
                (("ready",), sum(each.recovered for each in recoverers)),
                (("buried",), sum(each.buried for each in recoverers)),
            ],
        )
        yield _family("duly_running_jobs", [((), sum(len(crew.worker.running) for crew in self._crews))])
        ages = [(loop, age_s) for crew in self._crews for loop, age_s in crew.pulse.ages().items()]
        yield _family("duly_loop_age_seconds", [((loop,), age_s) for loop, age_s in ages])

    def _look(self) -> _Queue | None:
        """
        The queue as it stands: read now, or within the last *fresh_s*; None if the store does not answer.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with self._reading:
                if time.monotonic() - self._read_at >= self._fresh_s:
                    self._app.sync.thread().call(self._read())
        else:
            # Waiting would hold the loop up: tell what is known, and know better the next time.
            if time.monotonic() - self._read_at >= self._fresh_s:
                self._app.sync.thread().start(self._read())
        return self._queue

    async def refresh(self) -> None:
        """
        Read how the queue stands on the loop that runs now, unless that was done within the last *fresh_s*.

        For a scrape by a process that has a loop anyway; what is collected next tells of it.
        """
        if self._with_queue and time.monotonic() - self._read_at >= self._fresh_s:
            await self._read(self._app)

    async def _read(self, app: Duly | None = None) -> None:
        try:
            async with asyncio.timeout(READ_S):
                self._queue = await self._read_queue(app or self._app.sync.here())
        except (DulyError, TimeoutError):
            self._queue = None
        self._read_at = time.monotonic()

    async def _read_queue(self, app: Duly) -> _Queue:
        store, views = await app.store(), await app.views()
        stats = await views.stats()
        waiting = [topic.topic for topic in stats.topics if topic.counts["ready"] > 0][:TOPICS]
        now_ms = await views.now_ms()
        # One after the other: a scrape must not open a connection for each topic.
        overdue_s = {
            topic: max(0, now_ms - (await views.waiting_since(topic) or now_ms)) / 1000 for topic in waiting
        }
        fill = [await Feed(store).fill(shard) for shard in range(store.shards)]
        callers = callers_of(await (await app.key_ring()).all())
        keys = await (await entries_of(app)).used(callers)
        return _Queue(stats, overdue_s, fill, await views.replies_dropped(), keys)


def _of_queue(queue: _Queue) -> Iterator[Family]:
    topics = queue.stats.topics
    yield _family(
        "duly_queue_jobs",
        [((each.topic, state), count) for each in topics for state, count in each.counts.items()],
    )
    yield _family(
        "duly_queue_oldest_overdue_seconds",
        [((each.topic,), queue.overdue_s.get(each.topic, 0.0)) for each in topics],
    )
    yield _family("duly_queue_promotion_lag_seconds", [((), max(0, queue.stats.overdue_ms) / 1000)])
    yield _family("duly_queue_workers", [((each.topic,), each.workers) for each in topics])
    yield _family("duly_queue_paused", [((each.topic,), float(each.paused)) for each in topics])
    yield _family("duly_events_fill_ratio", [((str(at),), ratio) for at, ratio in enumerate(queue.fill)])
    yield _family("duly_quarantined_jobs", [((), queue.stats.quarantined)])
    yield _family("duly_replies_dropped_total", [((), queue.replies_dropped)])
    yield _family("duly_idempotency_bytes", [((), queue.keys.bytes)])
    yield _family("duly_idempotency_fill_ratio", [((), max(queue.keys.fills.values()))])


def _family(name: str, samples: Iterable[tuple[tuple[str, ...], float]] = ()) -> Family:
    metric = METRICS[name]
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(name, metric.text, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def serve(app: Duly, port: int, host: str = "127.0.0.1") -> tuple[Metrics, int]:
    """
    Expose the metrics of an app over HTTP, from a thread; port 0 takes any.  The port is returned, too.

    Raises:
        UsageError: The address cannot be used.
    """
    metrics = Metrics(app)
    try:
        server = exposition.start(make_wsgi_app(metrics.registry), host, port)
    except OSError as error:
        app.hooks.meter = None
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"cannot expose metrics: port {port} of {host} is taken; choose another one, or 0 for any"
            ) from error
        raise UsageError(
            f"cannot expose metrics at {host}, port {port}: {error.strerror or error}"
        ) from error
    return metrics, server.server_port
