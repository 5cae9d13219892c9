"""
Lists of a service with a record: jobs of the queue and those that wait in the record, through cursors.
"""

from __future__ import annotations

import pytest

from duly import Duly
from duly.record.schema import migrate

JOBS = "/v1/topics/mail/jobs"


@pytest.fixture
def app(valkey, namespace, tmp_path):
    record = f"sqlite:///{tmp_path}/record.db"
    migrate(record)
    return Duly(valkey.url, namespace=namespace, record=record, horizon="1h")


async def listed(client, **params):
    ids = []
    for _ in range(50):
        answer = await client.get(JOBS, params=params)
        assert 200 == answer.status_code, answer.text
        ids += [job["id"] for job in answer.json()["jobs"]]
        if answer.json()["cursor"] is None:
            return ids
        params["cursor"] = answer.json()["cursor"]
    raise AssertionError("a list without an end")


async def test_pages_go_on_from_the_queue_into_the_record(client, shards):
    long = "x" * 200
    for id_, delay in (("far", 90_000), (long, 7_200), ("near", 60), ("nearer", 30), ("ready", 0)):
        assert 202 == (await client.post(JOBS, json={"id": id_, "delay": delay})).status_code
    ids = ["nearer", "near", long, "far"]
    for limit in (1, 2, 100):
        scheduled = await listed(client, state="scheduled", limit=limit)
        everything = await listed(client, limit=limit)
        assert (sorted(ids), sorted([*ids, "ready"])) == (sorted(scheduled), sorted(everything))
        in_order = (ids, [*ids, "ready"]) == (scheduled, everything)
        assert shards > 1 or in_order, "each shard is listed by itself"
