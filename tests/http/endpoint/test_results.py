"""
From request to result, and the request id that stands for both.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duly import current_job
from duly.contrib.fastapi import lifespan
from duly.http import AsyncRequest, async_endpoint, current_request
from tests.http.conftest import problem
from tests.http.endpoint.kit import ID, MODELS, REFUND, refunding, served, stored


@pytest.mark.parametrize("model", MODELS)
async def test_a_request_is_accepted_worked_on_and_its_result_is_there_to_fetch(make, queue, model):
    api = make(lifespan=lifespan(queue, work=True))
    async_endpoint(REFUND, refunding(queue, model), to=api, queue=queue)
    async with served(api) as client:
        accepted = await client.post("/orders/o-7/refund", json={"amount": 5})
        assert 202 == accepted.status_code, accepted.text
        told = accepted.json()
        assert told["id"] == accepted.headers[ID]
        assert f"/orders/o-7/refund/{told['id']}" == accepted.headers["location"]
        assert ("ready", 100) == (told["state"], told["status_code"])
        assert "1" == accepted.headers["retry-after"]

        status = await client.get(accepted.headers["location"], params={"wait": 30})
        assert 200 == status.status_code
        assert ("succeeded", 400, 1) == tuple(
            status.json()[name] for name in ("state", "status_code", "attempts")
        )
        assert told["id"] == status.headers[ID]
        result = {"order": "o-7", "amount": 5, "kind": model.__name__}
        assert result == status.json()["result"]
        fetched = await client.get(accepted.headers["location"] + "/result")
        assert (200, result) == (fetched.status_code, fetched.json())


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("body", [None, {"force": True}])
async def test_every_method_works_with_and_without_a_body(make, queue, method, body):
    @queue.handler("sweep")
    async def sweep(force: bool = False) -> list[Any]:
        return [current_request().method, force]

    api = make(lifespan=lifespan(queue, work=True))
    async_endpoint("/sweep", sweep, to=api, queue=queue, methods=["POST", "PUT", "PATCH", "DELETE"])
    async with served(api) as client:
        accepted = await client.request(method, "/sweep", json=body)
        assert 202 == accepted.status_code, accepted.text
        result = await client.get(accepted.headers["location"] + "/result", headers={"Prefer": "wait=30"})
        assert [method, body is not None] == result.json()


async def test_the_status_codes_are_those_of_the_first_documents(make, queue):
    refund = refunding(queue)

    def delayed(_, order):
        return {"delay": 3600} if order.reason == "later" else {}

    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refund, to=api, queue=queue, options=delayed, cancel=True)
    async with served(api) as client:
        codes = {}

        async def submit(reason):
            accepted = await client.post("/orders/1/refund", json={"amount": 1, "reason": reason})
            return accepted.headers["location"]

        async def note(place, **params):
            told = (await client.get(place, params=params)).json()
            codes[told["state"]] = told["status_code"]

        later = await submit("later")
        await note(later)
        await client.delete(later)
        await note(later)
        bad, good = await submit("bad"), await submit("good")
        await note(good)
        stop, holding = asyncio.Event(), asyncio.Event()

        @queue.around_handler
        async def hold(job, call_next):
            await holding.wait()
            return await call_next()

        worker = asyncio.create_task(queue.work(stop=stop))
        while "running" not in codes:
            await note(good)
        holding.set()
        await note(good, wait=30)
        await note(bad, wait=30)
        stop.set()
        await worker
    assert {
        "ready": 100,
        "scheduled": 200,
        "running": 300,
        "succeeded": 400,
        "dead": 500,
        "cancelled": 600,
    } == codes


async def test_what_was_asked_for_travels_with_the_job_and_secrets_do_not(make, queue):
    seen = []

    @queue.handler("note")
    async def note() -> None:
        seen.append((current_request(), current_job().context["request"]))

    api = make(lifespan=lifespan(queue, work=True))
    async_endpoint(
        "/notes/{note:int}/{part}", note, to=api, queue=queue, methods=["PUT"], deny_headers=["X-Inner"]
    )
    secrets = {
        "Authorization": "Bearer s3cret",
        "Cookie": "session=s3cret",
        "Proxy-Authorization": "s3cret",
        "X-Api-Key": "s3cret",
        "X-Auth-Token": "s3cret",
        "X-CSRFToken": "s3cret",
        "X-Inner": "s3cret",
    }
    async with served(api) as client:
        accepted = await client.put(
            "/notes/7/a b?tag=x&tag=y&dry=1",
            headers={**secrets, "X-Tenant": "acme", ID: "n-1", "Accept-Language": "de"},
        )
        assert "/notes/7/a%20b/n-1" == accepted.headers["location"]
        assert 200 == (await client.get(accepted.headers["location"] + "/result?wait=30")).status_code
        [job] = await stored(queue)
    [(asked, raw)] = seen
    assert isinstance(asked, AsyncRequest)
    assert ("n-1", "/notes/{note:int}/{part}", "PUT", "/notes/7/a b") == (
        asked.id,
        asked.endpoint,
        asked.method,
        asked.path,
    )
    assert {"note": 7, "part": "a b"} == asked.route
    assert ({"tag": "y", "dry": "1"}, {"tag": ["x", "y"]}) == (asked.query, asked.repeated)
    assert ("acme", "de") == (asked.headers["x-tenant"], asked.headers["accept-language"])
    assert raw["route"] == asked.route
    assert "s3cret" not in str(job)
    assert "s3cret" not in str(raw)
    assert "connection" not in asked.headers


async def test_with_a_list_of_headers_only_these_are_kept(make, queue):
    api = make()
    async_endpoint("/hook", "hook", to=api, queue=queue, allow_headers=["X-Tenant", "Stripe-Signature"])
    async with queue, served(api) as client:
        await client.post("/hook", headers={"X-Tenant": "acme", "Stripe-Signature": "s", "X-Other": "o"})
        [job] = await stored(queue)
    assert {"x-tenant": "acme", "stripe-signature": "s"} == job.envelope.context["request"]["headers"]


async def test_a_topic_by_name_serves_workers_whose_code_is_elsewhere(make, queue):
    api = make()
    async_endpoint("/hook", "hook", to=api, queue=queue)
    async with queue, served(api) as client:
        for number, body in enumerate([b'{"a": 1}', b"[1, 2]", b"7"]):
            sent = {"Content-Type": "application/vnd.shop+json", ID: f"h-{number}"}
            assert 202 == (await client.post("/hook", content=body, headers=sent)).status_code
            assert body == (await queue.job("hook", f"h-{number}").get()).payload
        empty = await client.post("/hook")
        assert b"null" == (await queue.job("hook", empty.json()["id"]).get()).payload


async def test_the_same_request_id_gives_the_same_job(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        sent = {"headers": {ID: "r-1"}, "content": b'{"amount": 5, "reason": ""}'}
        sent["headers"]["Content-Type"] = "application/json"
        first = await client.post("/orders/7/refund", **sent)
        sent["content"] = b'{ "reason":"","amount":5 }'  # the same, written in another way
        again = await client.post("/orders/7/refund", **sent)
        assert (202, 202) == (first.status_code, again.status_code)
        assert first.json() == again.json()
        assert first.headers["location"] == again.headers["location"]
        assert ("r-1", "r-1") == (first.headers[ID], again.headers[ID])
        assert 1 == len(await stored(queue))


@pytest.mark.parametrize(
    ("path", "amount"), [("/orders/7/refund", 6), ("/orders/8/refund", 5), ("/orders/7/refund?dry=1", 5)]
)
async def test_a_request_id_stands_for_one_request(make, queue, path, amount):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: "r-1"})
        other = await client.post(path, json={"amount": amount}, headers={ID: "r-1"})
        assert ID == problem(other, 422, "key-reused")["field"]
        assert "r-1" == other.headers[ID]
        assert 1 == len(await stored(queue))


async def test_an_id_that_no_job_can_have_is_refused(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        for wrong in ("a b", "", "x" * 201, "..", "a/b"):
            refused = await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: wrong})
            assert ID == problem(refused, 422, "invalid")["field"]
        assert [] == await stored(queue)
