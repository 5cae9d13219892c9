"""
Batch handlers on a real Spark: each job of a batch ends as its row says, whatever the function does.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import text

from duly import Duly, Fixed
from duly.errors import UsageError
from duly.ids import new_request
from duly.job import JobKey, JobState, Order
from duly.metrics import Metrics
from duly.record.schema import migrate
from duly.store import Promise, Want
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from duly.spark.work import worker
from duly.spark.work.driver import work

LONG_S = 90.0


@pytest.fixture
async def app(valkey, namespace) -> AsyncIterator[Duly]:
    app = Duly(valkey.url, namespace=namespace, drain_grace=0.2)
    yield app
    await app.aclose()


@asynccontextmanager
async def driving(app: Duly, spark: Any, **options: Any) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = asyncio.create_task(work(app, spark, stop=stop, **options))
    try:
        yield stop
        stop.set()
        await task
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=1)


async def become(app: Duly, topic: str, wanted: dict[str, str]) -> dict[str, Any]:
    """
    Wait until jobs are in these states, and return them.
    """

    async def check() -> dict[str, Any]:
        jobs = {id_: await app.job(topic, id_).get() for id_ in wanted}
        assert wanted == {id_: job.state.name for id_, job in jobs.items()}
        return jobs

    return await eventually(check, LONG_S)


async def test_each_row_says_what_becomes_of_its_job(app, spark):
    @app.batch_handler("score", backoff=Fixed(3600))
    def score(jobs):
        amount = F.get_json_object("payload", "$.amount").cast("int")
        return jobs.select(
            "id",
            F.when(amount > 100, "bury").when(amount > 10, "retry").otherwise("ok").alias("outcome"),
            F.struct((amount * 2).alias("twice")).alias("result"),
            F.concat(F.lit("too much: "), amount.cast("string")).alias("error"),
        )

    for id_, amount in (("small", 1), ("large", 50), ("huge", 500)):
        await app.enqueue(score.job({"amount": amount}), id=id_)
    async with driving(app, spark):
        jobs = await become(app, "score", {"small": "succeeded", "large": "scheduled", "huge": "dead"})
    assert {"twice": 2} == await app.job("score", "small").result(timeout=10)
    assert b'{"type":"retry","message":"too much: 50"}' == jobs["large"].outcome
    assert b'{"type":"buried","message":"too much: 500"}' == jobs["huge"].outcome
    assert [1, 1, 1] == [job.attempts for job in jobs.values()]


@pytest.mark.parametrize("shards", [1, 3])
async def test_batches_of_a_queue_with_a_record_end_in_its_rows(valkey, namespace, tmp_path, spark, shards):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    app = Duly(valkey.url, namespace=namespace, record=url, shards=shards, drain_grace=0.2)

    @app.batch_handler("score")
    def score(jobs):
        number = F.get_json_object("payload", "$.number").cast("int")
        return jobs.select("id", F.when(number == 0, "bury").otherwise("ok").alias("outcome"))

    async def check():
        database = (await app.record()).database
        found = await database.read(lambda row: row.execute(text("SELECT id, state FROM duly_jobs")).all())
        assert {f"j{n}": JobState.succeeded if n else JobState.dead for n in range(9)} == dict(found)

    async with app:
        for number in range(9):
            await app.enqueue(score.job({"number": number}), id=f"j{number}")
        async with driving(app, spark):
            await eventually(check, LONG_S)


async def test_what_a_batch_sets_in_its_context_is_not_there_in_the_next(app, spark):
    seen = []
    told: ContextVar[str] = ContextVar("told", default="nothing")

    @app.batch_handler("score", max_rows=1)
    def score(jobs):
        seen.append(told.get())
        told.set("something")
        return jobs.select("id", F.lit("ok").alias("outcome"))

    for number in range(3):
        await app.enqueue(score.job(), id=f"j{number}")
    async with driving(app, spark):
        await become(app, "score", {f"j{number}": "succeeded" for number in range(3)})
    assert ["nothing"] * 3 == seen


async def test_metrics_of_an_app_with_batch_handlers_can_be_scraped_while_it_works(app, spark):
    go_on = threading.Event()

    @app.batch_handler("score")
    def score(jobs):
        go_on.wait(LONG_S)
        return jobs.select("id", F.lit("ok").alias("outcome"))

    metrics = Metrics(app, queue=False)

    def running() -> float | None:
        return metrics.registry.get_sample_value("duly_running_jobs")

    await app.enqueue(score.job(), id="x")
    async with driving(app, spark):
        await eventually(lambda: running() == 1, LONG_S)
        go_on.set()
        await eventually(lambda: running() == 0, LONG_S)


async def test_a_function_sees_payload_context_attempt_due_time_and_token(app, spark):
    @app.batch_handler("look")
    def look(jobs):
        rest = [name for name in jobs.columns if name != "id"]
        return jobs.select("id", F.lit("ok").alias("outcome"), F.struct(*rest).alias("result"))

    handle = await app.enqueue(look.job({"a": 1}), id="x", context={"tenant": "acme"})
    async with driving(app, spark):
        told = await handle.result(timeout=LONG_S)
    assert ('{"a":1}', 1, '{"tenant":"acme"}') == (told["payload"], told["attempt"], told["context"])
    assert handle.due_at.isoformat(timespec="seconds")[:16] == told["due_at"][:16]
    assert 33 == len(told["token"])


async def test_rows_that_are_forgotten_doubled_or_wrong_are_tried_again_and_the_error_says_so(app, spark):
    @app.batch_handler("odd", backoff=Fixed(3600))
    def odd(jobs):
        ok = jobs.where("id != 'forgotten'").select(
            "id", F.when(F.col("id") == "worded", "done").otherwise("ok").alias("outcome")
        )
        doubled = ok.where("id = 'doubled'")
        invented = doubled.withColumn("id", F.lit("invented"))
        return ok.unionByName(doubled).unionByName(invented)

    names = ("good", "forgotten", "doubled", "worded")
    for name in names:
        await app.enqueue(odd.job(), id=name)
    async with driving(app, spark):
        jobs = await become(app, "odd", dict.fromkeys(names, "scheduled") | {"good": "succeeded"})
    assert b"the answer has no row for id 'forgotten'" in jobs["forgotten"].outcome
    assert b"the answer has more than one row for id 'doubled'" in jobs["doubled"].outcome
    assert b"the outcome of id 'worded' is 'done', which is none of ok, retry, bury" in jobs["worded"].outcome


def raises(jobs):
    raise ValueError("no model today")


def raises_on_an_executor(jobs):
    def broken(batches):
        for _ in batches:
            raise KeyError("no such feature")
        yield from ()

    return jobs.mapInArrow(broken, "id string, outcome string")


def answers_with_a_list(jobs):
    return [("a", "ok")]


def answers_without_outcomes(jobs):
    return jobs.select("id")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, b"no model today"),
        (raises_on_an_executor, b"KeyError: 'no such feature'"),
        (answers_with_a_list, b"the batch handler of bad returned list, not a DataFrame"),
        (answers_without_outcomes, b"must have one column outcome; its columns are id"),
    ],
    ids=["raises", "raises on an executor", "returns a list", "lacks a column"],
)
async def test_a_function_that_fails_has_its_jobs_tried_again_and_then_dead(app, spark, function, message):
    bad = app.batch_handler("bad", max_attempts=2, backoff=Fixed(0.01))(function)
    await app.enqueue(bad.job(), id="a")
    async with driving(app, spark):
        jobs = await become(app, "bad", {"a": "dead"})
    assert 2 == jobs["a"].attempts
    assert message in jobs["a"].outcome
    assert b"\\n" not in jobs["a"].outcome


@pytest.mark.parametrize("nested", [False, True])
async def test_a_result_that_is_too_large_makes_its_job_dead_after_one_attempt(
    make_patient_app, spark, nested
):
    app = make_patient_app(result_limit="1KiB")

    @app.batch_handler("long")
    def long(jobs):
        text = F.repeat(F.lit("x"), 2000)
        result = F.array(text) if nested else text
        return jobs.select("id", F.lit("ok").alias("outcome"), result.alias("result"))

    await app.enqueue(long.job(), id="a")
    async with driving(app, spark):
        jobs = await become(app, "long", {"a": "dead"})
    assert f"result is {2004 if nested else 2002} bytes".encode() in jobs["a"].outcome
    assert 1 == jobs["a"].attempts


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'done'", "done"),
        ("42", 42),
        ("true", True),
        ("null", None),
        ("array(1, null)", [1, None]),
        ("named_struct('a', 1, 'b', cast(null as string))", {"a": 1, "b": None}),
        ("map('k', 1.5D)", {"k": 1.5}),
    ],
)
async def test_a_result_is_what_its_column_holds(app, spark, expression, value):
    @app.batch_handler("value")
    def handler(jobs):
        return jobs.select("id", F.lit("ok").alias("outcome"), F.expr(expression).alias("result"))

    handle = await app.enqueue(handler.job())
    async with driving(app, spark):
        assert value == await handle.result(timeout=LONG_S)


async def test_an_unreadable_payload_is_dead_at_once_and_does_no_harm_to_others(app, spark):
    @app.batch_handler("text")
    def text(jobs):
        return jobs.select("id", F.lit("ok").alias("outcome"))

    store = await app.store()
    await app.enqueue(text.job(), id="good")
    order = text.job().options(id="bad").order(app.settings.limits)
    await store.enqueue(msgspec.structs.replace(order, payload=b"\xff\xfe"))
    async with driving(app, spark):
        jobs = await become(app, "text", {"good": "succeeded", "bad": "dead"})
    assert b"unreadable" in jobs["bad"].outcome


async def test_no_batch_is_larger_than_asked_for_and_all_jobs_are_run(app, spark):
    sizes = []

    @app.batch_handler("many", max_rows=300)
    def many(jobs):
        sizes.append(jobs.count())
        return jobs.select("id", F.lit("ok").alias("outcome"))

    await app.enqueue_many([many.job(number).options(id=f"j{number}") for number in range(1000)])
    async with driving(app, spark):
        await ended(app, "many", 1000)
    assert (1000, True) == (sum(sizes), max(sizes) <= 300)


async def test_a_plain_worker_leaves_topics_of_batch_handlers_alone(app):
    @app.batch_handler("score")
    def score(jobs):
        return jobs

    with pytest.raises(UsageError, match="duly pipeline work"):
        await app.work()

    @app.handler("mail")
    async def mail() -> None: ...

    handle = await app.enqueue(score.job(), id="a")
    stop = asyncio.Event()
    worker = asyncio.create_task(app.work(stop=stop))
    await (await app.enqueue(mail.job())).result(timeout=LONG_S)
    stop.set()
    await worker
    assert JobState.ready is (await handle.get()).state


def slow(batches):
    import time

    for batch in batches:
        time.sleep(600)
        yield batch


def slowly(jobs):
    """
    Do in Spark what takes for ever unless it is stopped.
    """
    answer = jobs.select("id", F.lit("ok").alias("outcome"))
    return answer.mapInArrow(slow, "id string, outcome string").localCheckpoint()


async def test_a_batch_over_its_time_to_run_is_stopped_and_tried_again(app, spark, monkeypatch):
    # How soon a function must come back is not the point here.
    monkeypatch.setattr(worker, "SETTLE_S", LONG_S)
    stopped = threading.Event()

    @app.batch_handler("slow", ttr=1, max_attempts=1)
    def handler(jobs):
        try:
            return slowly(jobs)
        finally:
            stopped.set()

    await app.enqueue(handler.job(), id="a")
    async with driving(app, spark):
        jobs = await become(app, "slow", {"a": "dead"})
        assert b"TimeoutError" in jobs["a"].outcome
        assert b"longer than its time to run of 1 s" in jobs["a"].outcome
        # Spark was told, too: the function has come back.
        await eventually(stopped.is_set, LONG_S)


@pytest.mark.parametrize("why", ["timeout", "drain"])
async def test_what_a_function_begins_in_spark_after_it_was_given_up_is_stopped_too(
    app, spark, monkeypatch, why
):
    monkeypatch.setattr(worker, "SETTLE_S", LONG_S)
    begun, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    @app.batch_handler("slow", ttr=1 if why == "timeout" else 3600, max_attempts=1)
    def handler(jobs):
        begun.set()
        go_on.wait(LONG_S)
        try:
            return slowly(jobs)
        finally:
            stopped.set()

    await app.enqueue(handler.job(), id="a")
    try:
        async with driving(app, spark):
            await eventually(begun.is_set, LONG_S)
            if why == "timeout":
                await become(app, "slow", {"a": "dead"})
                go_on.set()
                await eventually(stopped.is_set, LONG_S)
        await become(app, "slow", {"a": "dead" if why == "timeout" else "ready"})
    finally:
        go_on.set()
    await eventually(stopped.is_set, LONG_S)


async def test_a_batch_that_does_not_finish_while_draining_is_given_back_uncounted(app, spark):
    begun, go_on = threading.Event(), threading.Event()

    @app.batch_handler("drain")
    def drain(jobs):
        begun.set()
        go_on.wait(LONG_S)
        return jobs.select("id", F.lit("ok").alias("outcome"))

    handle = await app.enqueue(drain.job(), id="a")
    try:
        async with driving(app, spark):
            await eventually(begun.is_set, LONG_S)
    finally:
        go_on.set()
    job = await handle.get()
    assert (JobState.ready, 0, 0) == (job.state, job.attempts, job.crashes)


async def test_a_batch_that_finishes_while_draining_counts(make_patient_app, spark):
    app, begun, go_on = make_patient_app(drain_grace=LONG_S), threading.Event(), threading.Event()

    @app.batch_handler("drain")
    def drain(jobs):
        begun.set()
        go_on.wait(LONG_S)
        return jobs.select("id", F.lit("ok").alias("outcome"))

    handle = await app.enqueue(drain.job(), id="a")
    async with driving(app, spark) as stop:
        await eventually(begun.is_set, LONG_S)
        stop.set()
        go_on.set()
    assert JobState.succeeded is (await handle.get()).state


@pytest.fixture
async def make_patient_app(valkey, namespace):
    apps = []

    def make(**settings: Any) -> Duly:
        apps.append(Duly(valkey.url, namespace=namespace, **settings))
        return apps[-1]

    yield make
    for app in apps:
        await app.aclose()


async def test_leases_are_extended_while_the_function_runs(make_patient_app, spark):
    app, calls, go_on = make_patient_app(lease="6s"), [], threading.Event()

    @app.batch_handler("slow")
    def slow(jobs):
        calls.append(jobs.count())
        go_on.wait(LONG_S)
        return jobs.select("id", F.lit("ok").alias("outcome"))

    handle = await app.enqueue(slow.job(), id="a")
    async with driving(app, spark):
        await eventually(lambda: bool(calls), LONG_S)
        first = (await handle.get()).lease_ms

        async def extended_past_the_first_lease():
            assert first + 6_000 <= (await handle.get()).lease_ms

        await eventually(extended_past_the_first_lease, LONG_S)
        go_on.set()
        jobs = await become(app, "slow", {"a": "succeeded"})
    assert ([1], 0) == (calls, jobs["a"].crashes)


@pytest.mark.parametrize("count", [40, 2_000])
async def test_jobs_of_a_lost_driver_come_back_together_and_those_that_crashed_again_alone(
    make_patient_app, spark, count
):
    app, sizes = make_patient_app(), []

    @app.batch_handler("crash", max_rows=10_000)
    def crash(jobs):
        sizes.append(jobs.count())
        return jobs.select("id", F.lit("ok").alias("outcome"))

    await app.enqueue_many([crash.job().options(id=f"j{number}") for number in range(count)])
    # Only what is to be lost has a short lease: the driver keeps its jobs on a busy machine, too.
    lost = app.make_store()
    lost.lease_ms = 300
    try:
        await lose(lost, "crash", count)
        await eventually(lambda: recover(lost, count), LONG_S)
        [twice] = await lose(lost, "crash", 1)
        await eventually(lambda: recover(lost, 1), LONG_S)
    finally:
        await lost.link.aclose()
    async with driving(app, spark):
        await ended(app, "crash", count)
    # Together, in a few batches and not in many small ones; how many depends on what a claim met just then.
    assert (1, count) == (min(sizes), sum(sizes))
    assert len(sizes) <= 8
    assert 2 == (await app.job(*twice.key).get()).crashes


async def test_a_driver_with_a_backlog_makes_room_for_a_job_that_has_to_run_alone(make_patient_app, spark):
    app, batches, go_on = make_patient_app(), [], threading.Event()

    @app.batch_handler("backlog", max_rows=5, ttr=600)
    def backlog(jobs):
        batches.append({row.id for row in jobs.select("id").collect()})
        go_on.wait(LONG_S)
        return jobs.select("id", F.lit("ok").alias("outcome"))

    await app.enqueue_many([backlog.job().options(id=f"j{number}") for number in range(40)])
    async with driving(app, spark):
        await eventually(lambda: bool(batches), LONG_S)
        store = await app.store()
        order = Order(JobKey("backlog", "twice"), b"{}", due_ms=1)
        await store.hydrate([Promise(order, 1, new_request(), crashes=2)])
        go_on.set()
        await ended(app, "backlog", 41)
    # In the end it would run alone anyway.
    assert batches.index({"twice"}) < len(batches) - 1


async def ended(app, topic, count):
    """
    Wait until so many jobs have succeeded.
    """

    async def check():
        [found] = [each for each in (await (await app.views()).stats()).topics if each.topic == topic]
        assert count == found.counts["succeeded"]

    await eventually(check, LONG_S)


async def lose(store, topic, count):
    """
    Claim jobs as a driver that is killed would.
    """
    leases = []
    while len(leases) < count:
        room = count - len(leases)
        claimed = await store.claim(0, [Want(topic, room, 60_000)], worker="lost", limit=room)
        leases += claimed.leases
    return leases


async def recover(store, wanted):
    store.recovered = getattr(store, "recovered", 0) + (await store.recover(0)).recovered
    assert wanted <= store.recovered
    store.recovered = 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rows": 0}, "max_rows=0 must be a whole number from 1 to 1000000"),
        ({"every": -1}, "every=-1 must be zero or more"),
        ({"ttr": 0}, "ttr must be more than zero"),
        ({"max_attempts": 0}, "max_attempts=0"),
    ],
)
def test_wrong_options_of_a_batch_handler_are_refused(options, message):
    app = Duly("redis://nobody.invalid")
    with pytest.raises(UsageError, match=message):
        app.batch_handler("score", **options)(lambda jobs: jobs)


def test_a_topic_has_one_handler_of_either_kind():
    app = Duly("redis://nobody.invalid")
    app.batch_handler("score")(lambda jobs: jobs)
    with pytest.raises(UsageError, match="topic score has a handler already: <BatchHandler score"):

        @app.handler("score")
        async def score() -> None: ...

    app.remove_handler("score")
    app.handler("score")(lambda: None)
    with pytest.raises(UsageError, match="topic score has a handler already"):
        app.batch_handler("score")(lambda jobs: jobs)


def test_a_batch_handler_is_a_plain_function_of_one_argument():
    app = Duly("redis://nobody.invalid")
    with pytest.raises(UsageError, match="must take one argument"):
        app.batch_handler("score")(lambda: None)

    async def later(jobs): ...

    with pytest.raises(UsageError, match="a plain def, not an async one"):
        app.batch_handler("score")(later)


async def test_burst_ends_when_the_work_is_done(app, spark):
    from duly.cli.pipelines.work import _work_until

    @app.batch_handler("burst")
    def burst(jobs):
        return jobs.select("id", F.lit("ok").alias("outcome"))

    handle = await app.enqueue(burst.job())
    await asyncio.wait_for(_work_until(asyncio.Event(), app, spark, ["burst"], burst=True), LONG_S)
    assert JobState.succeeded is (await handle.get()).state


async def test_a_driver_without_batch_handlers_says_so(app):
    with pytest.raises(UsageError, match="there is no batch handler: decorate"):
        await work(app, None, stop=asyncio.Event())
    app.batch_handler("score")(lambda jobs: jobs)
    with pytest.raises(UsageError, match="no batch handler of topic mail; known are score"):
        await work(app, None, topics=["mail"], stop=asyncio.Event())
