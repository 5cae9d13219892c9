"""
The next batch is claimed while one runs, waits for no longer than is good for it, and the run is told of.
"""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from duly import Duly
from duly.job import JobKey, Lane, Lease
from duly.runs import Runs
from duly.spark.work.batch import Held
from duly.spark.work.saving import PER_CALL, _parts
from duly.store import Finish
from tests.eventually import eventually
from tests.lostclaims import lose_a_claim
from tests.shards import one_id_on_each
from tests.spark.test_batch_work import LONG_S, driving


@pytest.fixture
async def app(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace, drain_grace=30)
    yield app
    await app.aclose()


def leased(id_="a"):
    key = JobKey("score", id_)
    return Lease(key, 0, Lane.normal, 1, 1, b"n" * 8, 1, 0, 0, 0, 0, 1_000, 0, b"{}")


def slow(app, gate, *, ttr):
    """
    Batches of three, of which each waits at the gate.
    """

    @app.batch_handler("score", max_rows=3, ttr=ttr)
    def score(jobs):
        gate.wait(LONG_S)
        return jobs.select("id", F.lit("ok").alias("outcome"))

    return score


async def become(app, *, ready, running, succeeded):
    """
    Wait until so many jobs are in these states.
    """

    async def check():
        [topic] = (await (await app.views()).stats()).topics
        found = {state: topic.counts[state] for state in ("ready", "running", "succeeded")}
        assert {"ready": ready, "running": running, "succeeded": succeeded} == found

    await eventually(check, LONG_S)


async def test_a_backlog_is_claimed_while_a_batch_runs_and_the_run_is_noted(app, spark):
    gate = threading.Event()
    score = slow(app, gate, ttr=600)
    await app.enqueue_many(score.job().options(id=f"j{n}") for n in range(8))
    async with driving(app, spark):
        # Three that run, and three that wait for them.
        await become(app, ready=2, running=6, succeeded=0)
        gate.set()
        await become(app, ready=0, running=0, succeeded=8)
    [run] = await Runs(await app.store()).all()
    assert ("work", {"batches": 3, "jobs": 8, "lost": 0}, None) == (run.name, run.counts, run.error)


async def test_jobs_of_an_unanswered_claim_do_not_wait_for_the_batch(valkey, namespace, spark, monkeypatch):
    app = Duly(valkey.url, namespace=namespace, drain_grace=30, shards=2, lease=600)
    gate = threading.Event()
    score = slow(app, gate, ttr=600)
    ids = one_id_on_each(app.settings, "score")
    jobs = await app.enqueue_many(score.job().options(id=id_) for id_ in ids)
    lost = lose_a_claim(monkeypatch, answered=1)
    async with app, driving(app, spark):
        await lost.wait()
        await become(app, ready=1, running=1, succeeded=0)
        gate.set()
        await become(app, ready=0, running=0, succeeded=2)
        assert [0, 0] == [(await job.get()).crashes for job in jobs]


async def test_a_driver_that_ends_gives_back_what_an_unanswered_claim_took(
    valkey, namespace, spark, monkeypatch
):
    app = Duly(valkey.url, namespace=namespace, drain_grace=30, lease=600)
    score = slow(app, threading.Event(), ttr=600)
    job = await app.enqueue(score.job())
    async with app:
        driven = driving(app, spark)
        lost = lose_a_claim(monkeypatch, silent=2)
        async with driven:
            await lost.wait()
        assert ("ready", 0) == ((await job.get()).state.name, (await job.get()).crashes)


async def test_jobs_that_would_wait_for_long_are_given_back_uncounted(app, spark):
    gate = threading.Event()
    score = slow(app, gate, ttr=60)  # of which a tenth may be spent with waiting
    await app.enqueue_many(score.job().options(id=f"j{n}") for n in range(6))
    async with driving(app, spark):
        await become(app, ready=0, running=6, succeeded=0)
        await become(app, ready=3, running=3, succeeded=0)
        gate.set()
        await become(app, ready=0, running=0, succeeded=6)
    jobs = [await app.job("score", f"j{n}").get() for n in range(6)]
    assert [1] * 6 == [job.attempts for job in jobs]
    assert [0] * 6 == [job.crashes for job in jobs]


async def test_a_drain_gives_back_what_was_claimed_ahead(app, spark):
    gate = threading.Event()
    score = slow(app, gate, ttr=600)
    await app.enqueue_many(score.job().options(id=f"j{n}") for n in range(6))
    async with driving(app, spark) as stop:
        await become(app, ready=0, running=6, succeeded=0)
        stop.set()
        await become(app, ready=3, running=3, succeeded=0)
        gate.set()
    await become(app, ready=3, running=0, succeeded=3)


async def test_a_batch_that_fails_is_what_was_wrong_with_the_run(app, spark):
    @app.batch_handler("score", max_attempts=1)
    def score(jobs):
        raise ValueError("a secret of a payload")

    await app.enqueue(score.job(), id="a")

    async def is_dead():
        assert "dead" == (await app.job("score", "a").get()).state.name

    async with driving(app, spark):
        await eventually(is_dead, LONG_S)
    [run] = await Runs(await app.store()).all()
    assert "score: the batch failed: ValueError" == run.error


def test_leases_are_extended_once_a_part_of_their_time_is_over():
    young, old = Held(60_000), Held(0)
    lease = leased()
    for held in (young, old):
        held.hold([lease])
    assert ([], [lease]) == (young.held(), old.held())
    assert [lease] == young.all()
    young.drop([leased()])
    assert [lease] == young.all(), "claimed anew: the lease of old is not this one"
    young.drop([lease])
    assert [] == young.all()


@pytest.mark.parametrize(
    ("count", "size", "calls"), [(0, 1, 0), (1, 1, 1), (PER_CALL + 1, 1, 2), (3, 600_000, 3)]
)
def test_outcomes_are_cut_into_what_one_call_may_take(count, size, calls):
    finishes = [Finish(leased(f"j{n}"), 0, (b"x" * size,)) for n in range(count)]
    parts = list(_parts(finishes))
    assert calls == len(parts)
    assert finishes == [finish for part in parts for finish in part]
