"""
Results over HTTP: those who wait have them, and one that was not kept is a problem of its own, never null.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.http import jobs
from duly.store import Want
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.shards import claim_all

JOBS = "/v1/topics/mail/jobs"


async def run(app, result=b'{"sent":true}', topic="mail"):
    """
    Run the only job there is, as a worker in another process would.
    """
    store = await app.store()
    [lease] = await claim_all(store, [Want(topic, 1, 60_000)], worker="w")
    await store.ack(lease, result)


@pytest.fixture
def quick(app, monkeypatch):
    """
    A worker that ends every job before its sender has begun to wait.
    """
    wait = jobs.ended

    async def ended(service, request, key, wait_s):
        await run(app)
        await wait(service, request, key, wait_s)

    monkeypatch.setattr(jobs, "ended", ended)


async def test_a_result_that_was_not_kept_is_a_problem_that_says_so(client, app):
    await client.post(JOBS, json={"id": "a", "retain": 0})
    await run(app)
    for path in (f"{JOBS}/a/result", f"{JOBS}/a/result?wait=5"):
        document = problem(await client.get(path), 410, "result-gone")
        assert "retain=60" in document["detail"]
    told = (await client.get(f"{JOBS}/a")).json()
    assert ("succeeded", None, True) == (told["state"], told["result"], told["result_gone"])


async def test_a_handler_that_returned_nothing_has_a_result_of_null(client, app):
    await client.post(JOBS, json={"id": "a", "retain": 0})
    await run(app, b"")
    found = await client.get(f"{JOBS}/a/result")
    assert (200, b"null") == (found.status_code, found.content)
    assert not (await client.get(f"{JOBS}/a")).json()["result_gone"]


@pytest.mark.parametrize("retain", [1, 30, 59, "0.5s"])
async def test_a_short_time_is_a_minute(client, app, retain):
    await client.post(JOBS, json={"id": "a", "retain": retain})
    await run(app)
    assert {"sent": True} == (await client.get(f"{JOBS}/a/result")).json()


@pytest.mark.parametrize("how", [{"params": {"wait": 30}}, {"headers": {"Prefer": "wait=30"}}])
@pytest.mark.parametrize("path", [f"{JOBS}/a", f"{JOBS}/a/result"])
async def test_those_who_wait_have_a_result_that_is_not_kept(client, app, how, path):
    await client.post(JOBS, json={"id": "a", "retain": 0})
    asking = asyncio.create_task(client.get(path, **how))
    store = await app.store()

    async def marked():
        [[record, *_]] = await store.get([app.job("mail", "a").key])
        assert record[6] & 1

    await eventually(marked)
    await run(app)
    told = (await asking).json()
    assert {"sent": True} == (told if path.endswith("result") else told["result"])


@pytest.mark.parametrize("retain", [0, None])
async def test_a_sender_that_waits_has_the_result_however_quick_the_worker_is(client, quick, retain):
    answer = await client.post(JOBS, json={"retain": retain}, headers={"Prefer": "wait=30"})
    assert (200, {"sent": True}, False) == (
        answer.status_code,
        answer.json()["result"],
        answer.json()["result_gone"],
    )
    found = await client.get(answer.headers["location"] + "/result")
    assert {"sent": True} == found.json(), "for the rest of the minute"


@pytest.mark.parametrize("wait", [None, "wait=30"])
@pytest.mark.parametrize("size", [1, 5_000])
async def test_a_request_that_is_sent_again_finds_the_job_that_was_not_kept(client, app, wait, size):
    body, headers = {"payload": "x" * size, "retain": 0}, {"Idempotency-Key": "k"}
    first = await client.post(JOBS, json=body, headers=headers)
    await run(app)
    if wait is not None:
        headers["Prefer"] = wait
    again = await client.post(JOBS, json=body, headers=headers)
    told = again.json()
    if wait is None:
        assert (202, first.json()) == (again.status_code, told), "the first answer"
    else:
        assert (200, first.json()["id"], "succeeded", True) == (
            again.status_code,
            told["id"],
            told["state"],
            told["result_gone"],
        )
    other = await client.post(JOBS, json={**body, "payload": 1}, headers=headers)
    problem(other, 422, "key-reused")


async def test_a_request_with_a_wait_that_is_sent_again_gets_the_result_again(client, app, monkeypatch):
    body, headers = {"payload": 1, "retain": 0}, {"Idempotency-Key": "k", "Prefer": "wait=30"}
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "ended", lambda *_: run(app))
        first = await client.post(JOBS, json=body, headers=headers)
    again = await client.post(JOBS, json=body, headers=headers)
    assert [(200, {"sent": True})] * 2 == [
        (each.status_code, each.json()["result"]) for each in (first, again)
    ]
