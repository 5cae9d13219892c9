"""
A service whose database is away: nothing is promised, and the client is told to come again.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Duly
from tests.databases import PostgreSQL

JOBS = "/v1/topics/mail/jobs"


@pytest.fixture
def database():
    database = PostgreSQL()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture
def app(valkey, namespace, database):
    return Duly(valkey.url, namespace=namespace, record=database.migrated())


async def test_while_the_database_is_away_nothing_is_accepted(client, database):
    assert 202 == (await client.post(JOBS, json={"id": "before"})).status_code
    database.kill()
    refused = await client.post(JOBS, json={"id": "meanwhile"})
    assert (503, "1") == (refused.status_code, refused.headers["retry-after"])
    assert refused.json()["type"].endswith("unavailable")
    assert "127.0.0.1" not in refused.text  # where the database is, is none of the client's business
    await asyncio.to_thread(database.start)
    assert 404 == (await client.get(f"{JOBS}/meanwhile")).status_code
    assert 202 == (await client.post(JOBS, json={"id": "after"})).status_code
    assert 200 == (await client.get(f"{JOBS}/before")).status_code


async def test_what_is_in_the_queue_is_served_with_a_key_while_the_database_is_away(
    client, app, database, monkeypatch
):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    text, _ = await (await app.key_ring()).create("shop", ["admin"])
    key = {"Authorization": f"Bearer {text}"}
    assert 202 == (await client.post(JOBS, json={"id": "a"}, headers=key)).status_code
    database.kill()
    assert 200 == (await client.get(f"{JOBS}/a", headers=key)).status_code
    assert 401 == (await client.get(f"{JOBS}/a")).status_code


async def test_what_is_in_the_queue_is_not_served_without_keys_while_the_database_is_away(
    client, database, monkeypatch, caplog
):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    assert 202 == (await client.post(JOBS, json={"id": "a"})).status_code
    database.kill()
    refused = await client.get(f"{JOBS}/a")
    assert 503 == refused.status_code
    assert "127.0.0.1" not in refused.text
    assert "the record does not tell whether it had some" in caplog.text
