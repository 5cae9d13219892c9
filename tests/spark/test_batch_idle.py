"""
A driver with many batch handlers asks the server for what there is, and not for each of its topics.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from duly import Duly
from duly.services.outlook import Outlook
from duly.spark.work.worker import BatchWorker
from tests.eventually import eventually

SHARDS, TOPICS = 3, 40


@pytest.fixture
async def app(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, shards=SHARDS) as app:
        for number in range(TOPICS):
            app.batch_handler(f"t{number}", max_rows=2)(lambda jobs: jobs)
        yield app


@pytest.fixture
async def worker(app):
    """
    A worker that has no Spark, for nothing begins.
    """
    store = await app.store()
    return BatchWorker(store, app.handlers, [Outlook() for _ in range(SHARDS)], spark=None)


@pytest.fixture
def claims(worker, monkeypatch):
    """
    The topics that are claimed, one for each claim.
    """
    claimed, claim = [], worker._store.claim

    async def note(shard, wants, **options):
        claimed.extend(want.topic for want in wants)
        return await claim(shard, wants, **options)

    monkeypatch.setattr(worker._store, "claim", note)
    return claimed


async def test_an_idle_round_is_one_claim_a_shard_however_many_topics_there_are(worker, claims):
    for asked in range(1, 4):
        assert await worker._gather() is None
        assert asked * SHARDS == len(claims)


async def test_topics_take_turns_at_the_claims_of_an_idle_driver(worker, claims):
    for _ in range(TOPICS):
        await worker._gather()
    assert TOPICS == len(set(claims))


async def test_of_many_topics_the_one_with_a_job_is_claimed_at_once(worker, claims, app):
    await app.enqueue("t27", {}, id="a")
    gathered = await worker._gather()
    assert ("t27", ["a"]) == (gathered.handler.topic, [lease.key.id for lease in gathered.leases.values()])
    assert {"t27"} == set(claims)


async def test_a_job_that_nobody_made_ready_is_claimed_when_it_is_due(worker, app):
    await app.enqueue("t9", {}, id="a", delay="50ms")

    async def comes():
        assert (gathered := await worker._gather()) is not None
        assert "t9" == gathered.handler.topic

    await eventually(comes)
