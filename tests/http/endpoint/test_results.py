"""
From request to result, and the request id that stands for both.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duly import Duly, current_job
from duly.contrib.fastapi import lifespan
from duly.http import AsyncRequest, async_endpoint, current_request, endpoint
from duly.job import JobKey
from duly.record.schema import migrate
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.http.endpoint.kit import ID, MODELS, REFUND, refunding, served, stored
from tests.http.test_idempotency import forget


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
        assert ("ready", 100) == (told["state"], told["state_code"])
        assert "1" == accepted.headers["retry-after"]

        status = await client.get(accepted.headers["location"], params={"wait": 30})
        assert 200 == status.status_code
        assert ("succeeded", 400, 1) == tuple(
            status.json()[name] for name in ("state", "state_code", "attempts")
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
            codes[told["state"]] = told["state_code"]

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


@pytest.mark.parametrize("id_", ["r-1", "acme:r-1"])
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
async def test_a_request_that_is_sent_again_changes_nothing(make, queue, on_conflict, id_):
    options = {"id": id_, "on_conflict": on_conflict}
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, options=options)
    async with served(api) as client:
        sent = {"json": {"amount": 5}, "headers": {ID: "r-1"}}
        first = await client.post("/orders/7/refund", **sent)
        [job] = await stored(queue)
        again = await client.post("/orders/7/refund", **sent)
        assert (202, first.json()) == (again.status_code, again.json())
        assert [job.revision] == [each.revision for each in await stored(queue)]
        await forget(queue, job.key)
        again = await client.post("/orders/7/refund", **sent)
        assert (202, id_) == (again.status_code, again.json()["id"])
        told = await client.post(
            "/orders/7/refund", json={"amount": 5}, headers={ID: "r-1", "Prefer": "wait=30"}
        )
        assert 202 == told.status_code, "there is nothing to wait for"
        assert [] == await stored(queue), "it does not run twice"


async def test_a_refusal_is_the_first_answer_too(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, options={"on_conflict": "raise"})
    async with served(api) as client:
        await queue.enqueue("refund", {"amount": 5}, id="r-1", delay=60)
        sent = {"json": {"amount": 5}, "headers": {ID: "r-1"}}
        first = await client.post("/orders/7/refund", **sent)
        problem(first, 409, "exists")
        await forget(queue, JobKey("refund", "r-1"))
        assert first.content == (await client.post("/orders/7/refund", **sent)).content


async def test_the_id_of_a_request_takes_no_room_in_the_context(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: "r-1"})
        [job] = await stored(queue)
    assert {"request"} == job.envelope.context.keys()


async def test_requests_that_choose_the_same_job_are_told_apart(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, options=lambda request, _: {"id": "one"})
    async with served(api) as client:
        first = await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: "r-1"})
        same = await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: "r-2"})
        assert (202, first.json()) == (same.status_code, same.json())
        other = await client.post("/orders/7/refund", json={"amount": 6}, headers={ID: "r-3"})
        problem(other, 422, "key-reused")


@pytest.fixture(params=[False, True], ids=["queue", "record"])
def either(request, valkey, namespace, tmp_path):
    """
    A queue without a record, and one with.
    """
    url = f"sqlite:///{tmp_path}/record.db" if request.param else None
    if url:
        migrate(url)
    return Duly(valkey.url, namespace=namespace, record=url)


def of_tenant(on_conflict):
    return lambda request, _: {
        "id": f"{request.headers['x-tenant']}:{request.state.async_request_id}",
        "context": {"tenant": request.headers["x-tenant"]},
        "on_conflict": on_conflict,
    }


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
async def test_callers_whose_ids_the_options_keep_apart_have_a_job_each(make, either, on_conflict):
    api = make(lifespan=lifespan(either))
    async_endpoint("/reports", "report", to=api, queue=either, options=of_tenant(on_conflict))
    async with served(api) as client:

        async def post(tenant, body):
            return await client.post("/reports", json=body, headers={ID: "r-1", "X-Tenant": tenant})

        first = await asyncio.gather(post("acme", {"n": 1}), post("beta", {"n": 1}), post("corp", {"n": 2}))
        for tenant, answer in zip(("acme", "beta", "corp"), first, strict=True):
            assert (202, f"/reports/{tenant}:r-1") == (answer.status_code, answer.headers["location"])
            assert (f"{tenant}:r-1", "r-1") == (answer.json()["id"], answer.headers[ID])
            job = await either.job("report", f"{tenant}:r-1").get()
            assert tenant == job.envelope.context["tenant"]
        before = sorted((job.id, job.revision) for job in await stored(either))
        assert ["acme:r-1", "beta:r-1", "corp:r-1"] == [id_ for id_, _ in before]
        # Each is told of its own again, with every policy.
        problem(await post("acme", {"n": 2}), 422, "key-reused")
        assert first[1].json() == (await post("beta", {"n": 1})).json()
        assert before == sorted((job.id, job.revision) for job in await stored(either))


async def test_requests_of_one_id_for_several_orders_are_told_apart_by_the_options(make, queue):
    def of_order(request, _):
        return {"id": f"{request.path_params['order_id']}:{request.state.async_request_id}"}

    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, options=of_order)
    async with served(api) as client:
        for order in ("o-1", "o-2"):
            sent = await client.post(f"/orders/{order}/refund", json={"amount": 5}, headers={ID: "r-1"})
            assert f"/orders/{order}/refund/{order}:r-1" == sent.headers["location"]
        assert {"o-1:r-1", "o-2:r-1"} == {job.id for job in await stored(queue)}


@pytest.mark.parametrize("apart", [False, True])
async def test_endpoints_of_one_topic_share_its_ids_unless_the_options_keep_them_apart(make, queue, apart):
    api = make(lifespan=lifespan(queue))
    for name in ("a", "b"):

        def chosen(request, _, name=name):
            return {"id": f"{name}:{request.state.async_request_id}"} if apart else {}

        async_endpoint(f"/{name}", "hook", to=api, queue=queue, options=chosen)
    async with served(api) as client:
        first = await client.post("/a", json=1, headers={ID: "r-1"})
        other = await client.post("/b", json=1, headers={ID: "r-1"})
        if apart:
            assert ("/a/a:r-1", "/b/b:r-1") == (first.headers["location"], other.headers["location"])
        else:
            problem(other, 422, "key-reused")
        assert 1 + apart == len(await stored(queue))


async def test_another_request_for_the_same_job_goes_by_the_policy_of_the_job(make, queue):
    api = make(lifespan=lifespan(queue))
    options = {"id": "one", "on_conflict": "replace"}
    async_endpoint("/hook", "hook", to=api, queue=queue, options=options)
    async with served(api) as client:
        for number in (1, 2):
            sent = await client.post("/hook", json=number, headers={ID: f"r-{number}"})
            assert 202 == sent.status_code, sent.text
        [second] = await stored(queue)
        assert b"2" == second.payload
        # The first is late: sent again, it does not undo the second.
        await client.post("/hook", json=1, headers={ID: "r-1"})
        assert [second] == await stored(queue)


@pytest.mark.parametrize("options", [{"retain": 0}, {"retain": 30}])
async def test_a_job_that_is_not_kept_is_found_and_its_result_is_said_to_be_gone(make, queue, options):
    api = make(lifespan=lifespan(queue, work=True))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, options=options)
    result = {"order": "7", "amount": 5, "kind": "Refund"}
    async with served(api) as client:
        sent = {"json": {"amount": 5}, "headers": {ID: "r-1"}}
        place = (await client.post("/orders/7/refund", **sent)).headers["location"]

        async def ended():
            told = (await client.get(place)).json()
            assert "succeeded" == told["state"]
            return told

        told = await eventually(ended)
        gone = options["retain"] == 0
        assert (None if gone else result, gone) == (told["result"], told["result_gone"])
        found = await client.get(place + "/result", params={"wait": 5})
        if gone:
            assert "not kept" in problem(found, 410, "result-gone")["detail"]
        else:
            assert result == found.json()
        again = await client.post("/orders/7/refund", **sent)
        assert (202, "succeeded") == (again.status_code, again.json()["state"])
        other = await client.post("/orders/7/refund", json={"amount": 6}, headers={ID: "r-1"})
        problem(other, 422, "key-reused")


async def test_a_caller_that_waits_has_a_result_that_is_not_kept(make, queue, monkeypatch):
    """
    However quick the worker is: here it is done before the wait has begun.
    """
    wait = endpoint.ended

    async def ended(service, request, key, wait_s):
        stop = asyncio.Event()
        working = asyncio.create_task(queue.work(stop=stop))
        await eventually(lambda: _is_over(queue, key))
        stop.set()
        await working
        await wait(service, request, key, wait_s)

    monkeypatch.setattr(endpoint, "ended", ended)
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, options={"retain": 0})
    async with served(api) as client:
        told = await client.post("/orders/7/refund", json={"amount": 5}, headers={"Prefer": "wait=30"})
        assert (200, 5, False) == (
            told.status_code,
            told.json()["result"]["amount"],
            told.json()["result_gone"],
        )


async def _is_over(queue, key):
    assert (await queue.job(*key).get()).state.ended


async def test_an_id_that_no_job_can_have_is_refused(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        for wrong in ("a b", "", "x" * 201, "..", "a/b"):
            refused = await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: wrong})
            assert ID == problem(refused, 422, "invalid")["field"]
        assert [] == await stored(queue)
