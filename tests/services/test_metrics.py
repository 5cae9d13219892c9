"""
Metrics, as Prometheus reads them.
"""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from duly import Bury, Duly, Retry, Snooze, UsageError, current_job
from duly.idempotency import ASYNC_CALLERS, entries_of, name_of
from duly.metrics import LATENESS_S, METRICS, Metrics
from tests.eventually import eventually
from tests.services.conftest import becomes, working
from tests.shards import fixed_of, on_all, shard_of


@pytest.fixture
def metrics(app) -> Metrics:
    return Metrics(app, fresh_s=0)


class Scrape:
    """
    One answer to Prometheus.
    """

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, *sorted(labels.items())))


async def scrape(metrics: Metrics) -> Scrape:
    return Scrape((await asyncio.to_thread(generate_latest, metrics.registry)).decode())


async def test_every_verb_of_this_process_is_counted_by_topic(app, metrics):
    @app.handler("t", max_attempts=2)
    async def handler() -> object:
        job = current_job()
        if job.id == "retried" and job.attempt == 1:
            return Retry(delay=0.01)
        if job.id == "buried":
            raise Bury("enough")
        return None

    async with working(app):
        for id_ in ("plain", "retried"):
            await (await app.enqueue(handler.job(), id=id_)).result(timeout=30)
        await app.enqueue(handler.job(), id="plain")  # kept: nothing was done
        await becomes(await app.enqueue(handler.job(), id="buried"), "dead")
        await app.enqueue_many([handler.job().options(id=f"n{number}", delay=3600) for number in range(3)])
        await app.enqueue(handler.job(), id="n0", delay=7200, on_conflict="replace")

        async def counted() -> None:
            found = await scrape(metrics)
            assert {"enqueued": 6, "replaced": 1, "claimed": 4, "acked": 2, "retried": 1, "buried": 1} == {
                dict(key[1:])["verb"]: value
                for key, value in found.samples.items()
                if key[0] == "duly_verbs_total"
            }

        await eventually(counted, 30)


async def test_lateness_and_run_time_are_measured(app, metrics):
    @app.handler("slow")
    async def slow() -> None:
        await asyncio.sleep(0.05)

    async with working(app):
        await (await app.enqueue(slow.job(), delay=0.05)).result(timeout=30)
        await eventually(lambda: _has(metrics, "duly_job_run_seconds_count", 1, topic="slow"), 30)
    found = await scrape(metrics)
    assert 1 == found.value("duly_job_lateness_seconds_count", topic="slow")
    assert 0 <= found.value("duly_job_lateness_seconds_sum", topic="slow")
    assert 0.05 <= found.value("duly_job_run_seconds_sum", topic="slow")
    assert 0 == found.value("duly_job_run_seconds_bucket", topic="slow", le="0.01")
    edges = {
        float(dict(key[1:])["le"]) for key in found.samples if key[0] == "duly_job_lateness_seconds_bucket"
    }
    assert {*LATENESS_S, float("inf")} == edges


async def _has(metrics: Metrics, name: str, value: float, **labels: str) -> bool:
    return (await scrape(metrics)).value(name, **labels) == value


async def test_a_lost_lease_is_counted_as_fenced(app, metrics):
    began = asyncio.Event()

    @app.handler("long")
    async def long() -> None:
        began.set()
        await asyncio.sleep(600)

    async with working(app):
        job = await app.enqueue(long.job())
        await began.wait()
        assert 1 == (await scrape(metrics)).value("duly_running_jobs")
        await job.cancel()
        await eventually(lambda: _has(metrics, "duly_fenced_total", 1, topic="long"), 30)
    assert 0 == (await scrape(metrics)).value("duly_running_jobs")


async def test_the_queue_is_read_when_it_is_scraped(app, metrics):
    for number in range(3):
        await app.enqueue("ready", id=f"r{number}")
    await app.enqueue("later", delay=3600)
    await app.pause("ready")
    found = await scrape(metrics)
    assert (3, 0, 0, 1) == tuple(
        found.value("duly_queue_jobs", topic=topic, state=state)
        for topic in ("ready", "later")
        for state in ("ready", "scheduled")
    )
    assert 0 <= found.value("duly_queue_oldest_overdue_seconds", topic="ready") < 300
    assert 0 == found.value("duly_queue_oldest_overdue_seconds", topic="later")
    assert 0 == found.value("duly_queue_promotion_lag_seconds")
    assert (1, 0) == tuple(found.value("duly_queue_paused", topic=topic) for topic in ("ready", "later"))
    assert 0 == found.value("duly_queue_workers", topic="ready")
    assert 1 == found.value("duly_store_up")
    store = await app.store()
    for id_ in ("r0", "r1", "r2"):
        shard = str(shard_of(store, "ready", id_))
        assert 0 < found.value("duly_events_fill_ratio", shard=shard) < 0.01


async def test_room_for_requests_that_may_be_sent_again_is_told(app, metrics):
    found = await scrape(metrics)
    told = ("duly_idempotency_bytes", "duly_idempotency_fill_ratio")
    assert [0, 0] == [found.value(name) for name in told]
    entries = await entries_of(app)
    await entries.reserve(name_of(ASYNC_CALLERS, "a"), bytes(16))
    found = await scrape(metrics)
    used = await entries.used([ASYNC_CALLERS])
    assert [used.bytes, used.fills[ASYNC_CALLERS]] == [found.value(name) for name in told]
    assert 0 < used.fills[ASYNC_CALLERS] < 0.01


async def test_replies_that_were_dropped_are_counted(app, metrics):
    assert 0 == (await scrape(metrics)).value("duly_replies_dropped_total")
    store = await app.store()
    # As the store does when there are more of them than it keeps.
    await on_all(store, "meta", "HINCRBY", "replies_dropped", 3)
    assert 3 * store.shards == (await scrape(metrics)).value("duly_replies_dropped_total")


async def test_damaged_jobs_are_counted(app, metrics):
    assert 0 == (await scrape(metrics)).value("duly_quarantined_jobs")
    store = await app.store()
    await app.enqueue("mail", id="bad")
    await store.link.call("HSET", fixed_of(store, "mail", "bad")["jobs"], "mail/bad", b"12345")
    await store.audit(shard_of(store, "mail", "bad"), ["mail/bad"])
    assert 1 == (await scrape(metrics)).value("duly_quarantined_jobs")


async def test_the_oldest_overdue_job_grows_old_while_nobody_works(app, metrics):
    await app.enqueue("ready")
    first = (await scrape(metrics)).value("duly_queue_oldest_overdue_seconds", topic="ready")

    async def older() -> bool:
        found = await scrape(metrics)
        return found.value("duly_queue_oldest_overdue_seconds", topic="ready") > first

    await eventually(older, 30)


async def test_jobs_that_run_do_not_count_as_overdue(app, metrics):
    going = asyncio.Event()

    @app.handler("t", concurrency=2)
    async def handler() -> None:
        await going.wait()

    async with working(app):
        jobs = [await app.enqueue(handler.job(), id=f"n{number}") for number in range(2)]
        for job in jobs:
            await becomes(job, "running")
        assert 0 == (await scrape(metrics)).value("duly_queue_oldest_overdue_seconds", topic="t")
        await app.enqueue(handler.job(), id="waits")

        async def waits() -> bool:
            return (await scrape(metrics)).value("duly_queue_oldest_overdue_seconds", topic="t") > 0

        await eventually(waits, 30)
        going.set()


async def test_loops_of_a_worker_tell_their_age(app, metrics):
    @app.handler("t")
    async def handler() -> None: ...

    async with working(app):
        await (await app.enqueue(handler.job())).result(timeout=30)

        async def known():
            # The heart says so in a thread of its own: the job may have ended by then.
            found = await scrape(metrics)
            assert 1 == found.value("duly_queue_workers", topic="t")
            return found

        found = await eventually(known, 60)
        loops = {dict(key[1:])["loop"] for key in found.samples if key[0] == "duly_loop_age_seconds"}
        assert {"worker", "heart", "timer 0", "recoverer 0", "pruner", "auditor"} <= loops
        assert (0, 0) == tuple(found.value("duly_recovered_total", end=end) for end in ("ready", "buried"))
    found = await scrape(metrics)
    assert [] == [key for key in found.samples if key[0] == "duly_loop_age_seconds"]


async def test_a_store_that_does_not_answer_is_a_metric_and_not_an_error(own_server, namespace):
    app = Duly(own_server.url, namespace=namespace)
    metrics = Metrics(app, fresh_s=0)
    assert 1 == (await scrape(metrics)).value("duly_store_up")
    own_server.kill()
    found = await scrape(metrics)
    assert 0 == found.value("duly_store_up")
    assert "duly_queue_jobs" not in found.families
    await asyncio.to_thread(app.sync.close)


async def test_scrapes_share_what_was_read_as_long_as_it_is_fresh(app):
    metrics = Metrics(app, fresh_s=3600)
    await scrape(metrics)
    await app.enqueue("t")
    assert (await scrape(metrics)).value("duly_queue_jobs", topic="t", state="ready") is None


async def test_on_an_event_loop_a_scrape_tells_what_is_known_and_does_not_wait(app, metrics):
    await app.enqueue("t")
    first = Scrape(generate_latest(metrics.registry).decode())
    assert 0 == first.value("duly_store_up")

    def known() -> bool:
        found = Scrape(generate_latest(metrics.registry).decode())
        return found.value("duly_queue_jobs", topic="t", state="ready") == 1

    await eventually(known, 30)
    await asyncio.to_thread(app.sync.close)


async def test_without_the_queue_the_store_is_left_alone(make_app):
    app = make_app()
    metrics = Metrics(app, queue=False)
    found = await scrape(metrics)
    assert found.value("duly_store_up") is None
    assert 0 == found.value("duly_running_jobs")
    assert app.sync._thread is None


async def test_a_registry_may_be_given_and_holds_one_set(make_app):
    registry = CollectorRegistry()
    first = Metrics(make_app(), registry, queue=False)
    assert registry is first.registry
    with pytest.raises(UsageError, match="the registry has metrics of duly already"):
        Metrics(make_app(), registry)
    with pytest.raises(UsageError, match="this app has metrics already"):
        Metrics(first._app)


async def test_what_is_exposed_is_what_the_list_says(app, metrics):
    @app.handler("t")
    async def handler() -> object:
        return Snooze(3600) if current_job().id == "s" else None

    async with working(app):
        await (await app.enqueue(handler.job())).result(timeout=30)
        await becomes(await app.enqueue(handler.job(), id="s"), "scheduled")
        found = await scrape(metrics)
    exposed = {
        name if family.type != "counter" else f"{name}_total" for name, family in found.families.items()
    }
    exposed = {name for name in exposed if not name.endswith("_created")}
    assert set(METRICS) == exposed
    for name, metric in METRICS.items():
        family = found.families[name.removesuffix("_total")]
        assert (metric.kind, metric.text) == (family.type, family.documentation)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), name
