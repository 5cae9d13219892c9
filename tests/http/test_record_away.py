"""
A service with a record whose queue is away: the rows promise, tell and know the API keys.
"""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from duly import Duly
from duly.errors import RecordUnavailable
from duly.job import JobKey, JobState
from duly.record.database import Database
from duly.record.keys import KeptKeys
from duly.record.schema import migrate
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.servers import Server, binary

JOBS = "/v1/topics/mail/jobs"


@pytest.fixture
def own_server():
    server = Server(binary("valkey")).start()
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    return url


@pytest.fixture
def app(own_server, namespace, url):
    return Duly(own_server.url, namespace=namespace, record=url)


@pytest.fixture
def at_once(monkeypatch):
    """
    Keys are read for every request, instead of every few seconds.
    """
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)


@pytest.fixture(params=["silent", "killed"])
def leave(request, own_server):
    """
    Let the server of the queue go away.
    """

    def leave():
        if request.param == "silent":
            own_server.process.send_signal(signal.SIGSTOP)
        else:
            own_server.kill()

    return leave


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


async def kept(url, namespace, change):
    """
    Change the keys of a record beside the service.
    """
    database = Database(url)
    try:
        return await change(KeptKeys(database, namespace))
    finally:
        await database.aclose()


async def test_jobs_are_promised_and_told_with_a_key_while_the_queue_is_away(client, app, at_once, leave):
    text, _ = await (await app.key_ring()).create("shop", ["admin"])
    assert 202 == (await client.post(JOBS, json={"id": "before"}, headers=bearer(text))).status_code
    leave()
    for number in range(3):
        response = await client.post(JOBS, json={"id": f"m-{number}", "delay": 60}, headers=bearer(text))
        assert 202 == response.status_code, response.text
    for id_ in ("before", "m-0", "m-2"):
        response = await client.get(f"{JOBS}/{id_}", headers=bearer(text))
        assert (200, id_) == (response.status_code, response.json()["id"])
    problem(await client.post(JOBS, json={}, headers=bearer(text + "x")), 401, "unauthenticated")
    problem(await client.post(JOBS, json={}), 401, "unauthenticated")


async def test_jobs_are_promised_without_keys_while_the_queue_is_away(client, at_once, leave):
    leave()
    assert 202 == (await client.post(JOBS, json={"id": "a", "delay": 60})).status_code
    assert 200 == (await client.get(f"{JOBS}/a")).status_code


async def test_a_key_that_is_revoked_in_the_record_is_refused_while_the_queue_is_away(
    client, app, at_once, leave, url
):
    ring = await app.key_ring()
    text, key = await ring.create("shop", ["admin"])
    other, _ = await ring.create("other", ["admin"])
    assert 202 == (await client.post(JOBS, json={}, headers=bearer(text))).status_code
    leave()
    assert 202 == (await client.post(JOBS, json={}, headers=bearer(text))).status_code
    await kept(url, app.settings.namespace, lambda keys: keys.drop(key.id))
    problem(await client.post(JOBS, json={}, headers=bearer(text)), 401, "unauthenticated")
    assert 202 == (await client.post(JOBS, json={}, headers=bearer(other))).status_code


async def test_a_record_that_was_told_to_require_keys_keeps_everybody_out_while_the_queue_is_away(
    client, app, at_once, leave, url
):
    assert 202 == (await client.post(JOBS, json={})).status_code
    leave()
    await kept(url, app.settings.namespace, lambda keys: keys.require())
    problem(await client.post(JOBS, json={}), 401, "unauthenticated")


@pytest.mark.parametrize("with_key", [False, True])
async def test_nobody_is_let_in_while_queue_and_record_are_away(
    client, app, at_once, leave, monkeypatch, with_key
):
    headers = bearer((await (await app.key_ring()).create("shop", ["admin"]))[0]) if with_key else {}
    assert 202 == (await client.post(JOBS, json={}, headers=headers)).status_code
    monkeypatch.setattr("duly.apikeys.RECALL_S", 0.1)

    async def silence(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(Database, "read", silence)
    leave()
    problem(await client.post(JOBS, json={}, headers=headers), 503, "unavailable")
    problem(await client.get(f"{JOBS}/a", headers=headers), 503, "unavailable")


@pytest.fixture(params=["refuses", "silent"])
def lose_record(request, monkeypatch):
    """
    Let the record go away.
    """

    async def read(*_, **__):
        if request.param == "silent":
            await asyncio.Event().wait()
        raise RecordUnavailable("away")

    def lose():
        monkeypatch.setattr("duly.apikeys.RECALL_S", 0.1)
        monkeypatch.setattr(Database, "read", read)

    return lose


async def test_nobody_is_let_in_by_a_queue_without_keys_while_the_record_is_away(
    client, app, at_once, url, lose_record, caplog
):
    assert 202 == (await client.post(JOBS, json={})).status_code
    await kept(url, app.settings.namespace, lambda keys: keys.require())  # a key that is made elsewhere
    lose_record()
    for _ in range(2):
        problem(await client.post(JOBS, json={}), 503, "unavailable")
        problem(await client.get("/v1/audit"), 503, "unavailable")
        problem(await client.get(JOBS, headers=bearer("duly_0123456789ab_x")), 503, "unavailable")
    said = [record for record in caplog.records if record.name == "duly.keys"]
    assert ["CRITICAL"] == [record.levelname for record in said]


async def test_a_queue_with_keys_is_served_while_the_record_is_away(client, app, at_once, lose_record):
    text, _ = await (await app.key_ring()).create("shop", ["admin"])
    lose_record()
    assert 202 == (await client.post(JOBS, json={"delay": 60}, headers=bearer(text))).status_code
    problem(await client.post(JOBS, json={}), 401, "unauthenticated")


async def test_a_queue_without_keys_is_served_again_when_the_record_is_back(client, at_once, monkeypatch):
    async def refuse(*_, **__):
        raise RecordUnavailable("away")

    assert 200 == (await client.get(JOBS)).status_code
    with monkeypatch.context() as patch:
        patch.setattr(Database, "read", refuse)
        problem(await client.get(JOBS), 503, "unavailable")
    assert 200 == (await client.get(JOBS)).status_code


async def test_who_asks_again_does_not_wait_for_a_queue_that_is_away(client, app, at_once, leave):
    text, _ = await (await app.key_ring()).create("shop", ["admin"])
    await client.post(JOBS, json={"id": "a", "delay": 60}, headers=bearer(text))
    leave()
    assert 200 == (await client.get(f"{JOBS}/a", headers=bearer(text))).status_code
    began_s = time.monotonic()
    for _ in range(10):
        assert 200 == (await client.get(f"{JOBS}/a", headers=bearer(text))).status_code
    assert time.monotonic() - began_s < 1.5  # each would wait two seconds


async def test_a_client_changes_jobs_while_the_queue_is_away_and_waits_a_second_once(app, served, leave):
    async with served() as (place, _), Duly(place) as remote:
        for id_ in "abc":
            await remote.enqueue("mail", id=id_, delay=600)
        await remote.job("mail", "c").cancel()
        leave()
        began_s = time.monotonic()
        assert JobState.cancelled is await remote.job("mail", "a").cancel()
        assert time.monotonic() - began_s < 2
        began_s = time.monotonic()
        moved = await remote.job("mail", "b").reschedule(delay=900)
        again = await remote.job("mail", "c").requeue()
        assert (await remote.enqueue("mail", id="d", delay=600)).created
        assert JobState.cancelled is await remote.job("mail", "d").cancel()
        assert time.monotonic() - began_s < 2
        jobs = [await remote.job("mail", id_).get() for id_ in "abcd"]
    assert ["cancelled", "scheduled", "ready", "cancelled"] == [job.state.name for job in jobs]
    assert [moved.revision, again.revision] == [job.revision for job in jobs[1:3]]


async def test_a_job_without_a_row_is_not_denied_while_the_queue_is_away(client, leave):
    assert 202 == (await client.post(JOBS, json={"id": "a", "delay": 60})).status_code
    leave()
    found, unknown = await asyncio.gather(client.get(f"{JOBS}/a"), client.get(f"{JOBS}/b"))
    assert 200 == found.status_code
    problem(unknown, 503, "unavailable")


async def test_a_client_that_waits_is_told_that_its_job_is_accepted_while_the_queue_is_away(client, leave):
    leave()
    response = await client.post(f"{JOBS}?wait=1", json={"id": "a", "delay": 60})
    assert (202, "scheduled") == (response.status_code, response.json()["state"])
    assert 200 == (await client.get(f"{JOBS}/a?wait=1")).status_code


async def test_the_queue_is_asked_again_when_it_is_back(client, app, own_server, at_once, monkeypatch):
    text, _ = await (await app.key_ring()).create("shop", ["admin"])
    own_server.process.send_signal(signal.SIGSTOP)
    assert 202 == (await client.post(JOBS, json={"id": "a"}, headers=bearer(text))).status_code
    own_server.process.send_signal(signal.SIGCONT)

    async def is_there():
        return await (await app.store()).get([JobKey("mail", "a")]) != [None]

    await eventually(is_there, within_s=30)

    async def refuse(*_, **__):
        raise RecordUnavailable("away")

    monkeypatch.setattr(Database, "read", refuse)

    async def is_told_by_the_queue():
        return 200 == (await client.get(f"{JOBS}/a", headers=bearer(text))).status_code

    await eventually(is_told_by_the_queue, within_s=30)
