"""
Jobs in quarantine over HTTP.
"""

from __future__ import annotations

import base64

from duly import Duly
from duly.apikeys import KeyRing
from duly.job import JobKey
from tests.http.conftest import problem
from tests.shards import fixed_of


async def put_aside(app, *members):
    store = await app.store()
    for member in members:
        await store.link.call("HSET", fixed_of(store, *JobKey.of(member))["quarantine"], member, b"\0" * 5)


async def damaged(client):
    """
    The ids of all jobs in quarantine, page by page: one for each shard at least.
    """
    found, params = [], {}
    while True:
        page = (await client.get("/v1/quarantine", params=params)).json()
        found += [job["id"] for job in page["jobs"]]
        if page["cursor"] is None:
            return sorted(found)
        params = {"cursor": page["cursor"]}


async def test_damaged_jobs_are_listed_shown_and_dropped(client, app):
    assert [] == await damaged(client)
    await put_aside(app, "mail/a", "mail/b")
    assert ["a", "b"] == await damaged(client)
    job = (await client.get("/v1/quarantine/mail/a")).json()
    assert (5, "scheduled", None, b"\0" * 5) == (
        *(job["bytes"], job["state"], job["revision"]),
        base64.b64decode(job["record"]),
    )
    assert 204 == (await client.delete("/v1/quarantine/mail/a")).status_code
    problem(await client.delete("/v1/quarantine/mail/a"), 404, "job-not-found")
    problem(await client.get("/v1/quarantine/mail/a"), 404, "job-not-found")
    assert ["b"] == await damaged(client)


async def test_a_job_that_is_dropped_again_under_the_same_key_is_another_one_and_stays(client, app):
    await put_aside(app, "mail/a")
    for _ in range(2):
        once = {"Idempotency-Key": "drop a"}
        assert 204 == (await client.delete("/v1/quarantine/mail/a", headers=once)).status_code
        assert [] == await damaged(client)
    await put_aside(app, "mail/a")
    assert 204 == (await client.delete("/v1/quarantine/mail/a", headers=once)).status_code
    absent = {"Idempotency-Key": "drop b"}
    problem(await client.delete("/v1/quarantine/mail/b", headers=absent), 404, "job-not-found")
    await put_aside(app, "mail/b")
    problem(await client.delete("/v1/quarantine/mail/b", headers=absent), 404, "job-not-found")
    assert ["a", "b"] == await damaged(client)


async def test_pages_lead_through_every_shard(valkey, namespace, serving, app):
    app.settings = Duly(valkey.url, namespace=namespace, shards=3).settings
    store = await app.store()
    for shard in range(3):
        for at in range(600):
            await store.link.call("HSET", store.keys[shard].fixed["quarantine"], f"mail/{shard}-{at}", b"x")
    found, at = set(), {}
    async with serving() as client:
        while at is not None:
            page = (await client.get("/v1/quarantine", params={"limit": 50, **at})).json()
            assert len(page["jobs"]) < 600
            found |= {job["id"] for job in page["jobs"]}
            at = page["cursor"] and {"cursor": page["cursor"]}
        for wrong in ("x", "9:0", "0:", ":0", "-1:0"):
            problem(await client.get("/v1/quarantine", params={"cursor": wrong}), 422, "invalid")
        problem(await client.get("/v1/quarantine", params={"limit": "0"}), 422, "invalid")
    assert 1_800 == len(found)


async def test_only_admins_see_them(client, app, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    await put_aside(app, "mail/a")
    text, _ = await KeyRing(await app.store()).create("reader", ["read", "enqueue", "work"])
    client.headers["Authorization"] = f"Bearer {text}"
    for method, path in (
        ("GET", "/v1/quarantine"),
        ("GET", "/v1/quarantine/mail/a"),
        ("DELETE", "/v1/quarantine/mail/a"),
    ):
        assert 403 == (await client.request(method, path)).status_code
