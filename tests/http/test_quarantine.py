"""
Jobs in quarantine over HTTP.
"""

from __future__ import annotations

import base64

from duly import Duly
from duly.apikeys import KeyRing
from tests.http.conftest import problem


async def put_aside(app, *members):
    store = await app.store()
    for member in members:
        await store.link.call("HSET", store.keys[0].fixed["quarantine"], member, b"\0" * 5)


async def test_damaged_jobs_are_listed_shown_and_dropped(client, app):
    assert {"jobs": [], "cursor": None} == (await client.get("/v1/quarantine")).json()
    await put_aside(app, "mail/a", "mail/b")
    page = (await client.get("/v1/quarantine")).json()
    assert ({"a", "b"}, None) == ({job["id"] for job in page["jobs"]}, page["cursor"])
    job = (await client.get("/v1/quarantine/mail/a")).json()
    assert (5, "scheduled", None, b"\0" * 5) == (
        *(job["bytes"], job["state"], job["revision"]),
        base64.b64decode(job["record"]),
    )
    assert 204 == (await client.delete("/v1/quarantine/mail/a")).status_code
    problem(await client.delete("/v1/quarantine/mail/a"), 404, "job-not-found")
    problem(await client.get("/v1/quarantine/mail/a"), 404, "job-not-found")
    assert ["b"] == [job["id"] for job in (await client.get("/v1/quarantine")).json()["jobs"]]


async def test_pages_lead_through_every_shard(valkey, namespace, serving, app):
    app.settings = Duly(valkey.url, namespace=namespace, shards=3).settings
    store = await app.store()
    for shard in range(3):
        for at in range(600):
            await store.link.call("HSET", store.keys[shard].fixed["quarantine"], f"mail/{shard}-{at}", b"x")
    found, cursor = set(), ""
    async with serving() as client:
        while cursor is not None:
            page = (await client.get("/v1/quarantine", params={"cursor": cursor, "limit": 50})).json()
            assert len(page["jobs"]) < 600
            found |= {job["id"] for job in page["jobs"]}
            cursor = page["cursor"]
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
