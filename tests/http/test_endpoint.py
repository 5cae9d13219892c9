"""
Async endpoints in an app of one's own, of Starlette and of FastAPI alike.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Router

from duly import Bury, Duly, UsageError, current_job
from duly.contrib.fastapi import lifespan
from duly.http import AsyncJob, AsyncRequest, async_endpoint, current_request
from duly.job import JobState
from tests.http.conftest import problem

ID = "X-Async-Request-Id"
REFUND = "/orders/{order_id}/refund"


@pytest.fixture(params=[Starlette, FastAPI], ids=["starlette", "fastapi"])
def make(request):
    return request.param


@pytest.fixture
def queue(valkey, namespace):
    return Duly(valkey.url, namespace=namespace, drain_grace=0.2)


@asynccontextmanager
async def served(api, **client):
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(api), base_url="http://shop", timeout=30, **client
        ) as client_,
    ):
        yield client_


async def stored(queue):
    views = await queue.views()
    return [job for state in JobState async for job in views.each(state)]


class Refund(BaseModel):
    amount: int = Field(gt=0)
    reason: str = ""


class RefundStruct(msgspec.Struct, forbid_unknown_fields=True):
    amount: int
    reason: str = ""


@dataclass
class RefundData:
    amount: int
    reason: str = ""


MODELS = [Refund, RefundStruct, RefundData]


def refunding(queue, model=Refund):
    async def refund(order: Refund) -> dict[str, Any]:
        """
        Give money back.

        In a while.
        """
        asked = current_request()
        if order.reason == "bad":
            raise Bury("no such order")
        return {"order": asked.route["order_id"], "amount": order.amount, "kind": type(order).__name__}

    refund.__annotations__["order"] = model
    return queue.handler("refund")(refund)


# -- from request to result -------------------------------------------------------------------------------


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


# -- the request id ---------------------------------------------------------------------------------------


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


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("body", [{}, {"amount": "much"}, {"amount": 5, "reason": 7}])
async def test_a_body_that_does_not_fit_the_model_is_refused_with_its_field(make, queue, model, body):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue, model), to=api, queue=queue)
    async with served(api) as client:
        refused = await client.post("/orders/7/refund", json=body)
        document = problem(refused, 422, "invalid")
        assert ("reason" if "reason" in body else "amount") == document["field"]
        assert document["detail"].startswith(document["field"]), document
        assert "much" not in refused.text
        assert refused.headers[ID]
        assert [] == await stored(queue)


async def test_all_that_pydantic_finds_is_told(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        document = problem(
            await client.post("/orders/7/refund", json={"amount": 0, "reason": 7}), 422, "invalid"
        )
    assert ["amount", "reason"] == [each["field"] for each in document["errors"]]
    assert "greater than 0" in document["errors"][0]["detail"]


async def test_fields_are_arguments_where_the_handler_takes_no_model(make, queue):
    @queue.handler("resize")
    async def resize(url: str, width: int = 100, *, lines: list[RefundStruct] = []) -> str:  # noqa: B006  # read only
        return f"{url}@{width}"

    api = make(lifespan=lifespan(queue, work=True))
    async_endpoint("/resize", resize, to=api, queue=queue)
    async with served(api) as client:
        accepted = await client.post("/resize", json={"url": "a.png", "width": 7})
        assert "a.png@7" == (await client.get(accepted.headers["location"] + "/result?wait=30")).json()
        wrong = {
            "width": {"url": "a.png", "width": "wide"},
            "url": {"width": 7},
            "height": {"url": "a.png", "height": 7},
            "lines[0].amount": {"url": "a.png", "lines": [{"amount": "x"}]},
        }
        for body in ([], "a.png", 7, False):
            document = problem(await client.post("/resize", json=body), 422, "invalid")
            assert "must be a JSON object" in document["detail"]
        for field, body in wrong.items():
            assert field == problem(await client.post("/resize", json=body), 422, "invalid")["field"]
        assert 1 == len(await stored(queue))


@pytest.mark.parametrize(
    ("kind", "good", "bad", "field"),
    [
        (list[int], [1, 2], [1, "x"], "[1]"),
        (dict[str, int], {"a": 1}, {"a": "x"}, "[...]"),
        (list[Refund], [{"amount": 1}], [{"amount": 0}], "[0].amount"),
        (Refund | None, {"amount": 1}, {"amount": 0}, "amount"),
    ],
)
async def test_a_collection_is_the_whole_body_too(make, queue, kind, good, bad, field):
    async def take(what: Any) -> None: ...

    take.__annotations__["what"] = kind
    seen = []
    api = make(lifespan=lifespan(queue))
    async_endpoint(
        "/take", queue.handler("take")(take), to=api, queue=queue, validate=lambda _, what: seen.append(what)
    )
    async with served(api) as client:
        assert 202 == (await client.post("/take", json=good)).status_code
        assert good == msgspec.to_builtins(seen[0], enc_hook=lambda each: each.model_dump(exclude_unset=True))
        assert field == problem(await client.post("/take", json=bad), 422, "invalid")["field"]
        assert 1 == len(await stored(queue))


@pytest.mark.parametrize(
    ("content", "kind", "status", "word"),
    [
        (b"", "application/json", 422, "invalid"),
        (b"{", "application/json", 400, "malformed"),
        (b"\xff", "application/json", 400, "malformed"),
        (b"[" * 100_000, "application/json", 400, "malformed"),
        (b'{"amount": NaN}', "application/json", 400, "malformed"),
        (b"[]", "application/json", 422, "invalid"),
        (b"null", "application/json", 422, "invalid"),
        (b"amount=5", "application/x-www-form-urlencoded", 415, "unsupported"),
        (b'{"amount": 5}', "", 415, "unsupported"),
        (b'{"amount": 5, "reason": "%s"}' % (b"x" * 300_000), "application/json", 413, "too-large"),
    ],
)
@pytest.mark.parametrize("model", MODELS)
async def test_a_bad_body_is_a_problem_and_nothing_is_queued(make, queue, model, content, kind, status, word):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue, model), to=api, queue=queue)
    async with served(api) as client:
        refused = await client.post("/orders/7/refund", content=content, headers={"Content-Type": kind})
        problem(refused, status, word)
        assert [] == await stored(queue)


async def test_a_handler_without_arguments_takes_no_body(make, queue):
    @queue.handler("sweep")
    async def sweep() -> None: ...

    api = make(lifespan=lifespan(queue))
    async_endpoint("/sweep", sweep, to=api, queue=queue)
    async with served(api) as client:
        for good in (b"", b"{}", b"null"):
            sent = await client.post("/sweep", content=good, headers={"Content-Type": "application/json"})
            assert 202 == sent.status_code
        for bad in ({"a": 1}, [1], "x"):
            document = problem(await client.post("/sweep", json=bad), 422, "invalid")
            assert "sweep" not in document["detail"], "who calls need not know who is called"


async def test_headers_that_a_job_cannot_carry_are_too_large(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", "hook", to=api, queue=queue)
    async with served(api) as client:
        problem(await client.post("/hook", headers={"X-Long": "x" * 9000}), 413, "too-large")
        assert [] == await stored(queue)


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_validator_ends_a_request_or_lets_it_be_queued(make, queue, is_async):
    def check(request, order):
        assert isinstance(order, Refund)
        if request.path_params["order_id"] == "closed":
            return JSONResponse({"reason": f"no {order.amount}"}, 409)
        return None

    async def check_async(request, order):
        return check(request, order)

    api = make(lifespan=lifespan(queue))
    validate = check_async if is_async else check
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, validate=validate)
    async with served(api) as client:
        refused = await client.post("/orders/closed/refund", json={"amount": 5}, headers={ID: "r"})
        assert (409, {"reason": "no 5"}) == (refused.status_code, refused.json())
        assert "r" == refused.headers[ID]
        assert [] == await stored(queue)
        assert 202 == (await client.post("/orders/open/refund", json={"amount": 5})).status_code


async def test_a_queue_that_is_away_is_told_with_when_to_come_back(make):
    away = Duly("unix:///nowhere/at/all.sock")
    api = make()
    async_endpoint("/hook", "hook", to=api, queue=away)
    async with served(api) as client:
        for asked in (client.post("/hook", headers={ID: "a"}), client.get("/hook/a")):
            refused = await asked
            document = problem(refused, 503, "unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            assert "nowhere" not in document["detail"]


async def test_settings_that_cannot_work_are_no_fault_of_the_caller(make, caplog):
    wrong = Duly("redis://inner-host:port")
    api = make()
    async_endpoint("/hook", "hook", to=api, queue=wrong)
    async with served(api) as client:
        for asked in (client.post("/hook"), client.get("/hook/a")):
            document = problem(await asked, 503, "unavailable")
            assert "inner-host" not in document["detail"]
    assert "the queue cannot be opened" in caplog.text
    assert "inner-host" not in caplog.text


async def test_a_body_may_be_as_large_as_a_job_can_carry(make, queue):
    api = make(lifespan=lifespan(queue))
    refund = refunding(queue)
    async_endpoint(REFUND, refund, to=api, queue=queue)
    async_endpoint("/small", refund, to=api, queue=queue, body_limit=100)
    limit = queue.settings.limits.payload
    around = len(b'{"amount":1,"reason":""}')
    async with served(api) as client:

        async def post(path, size):
            body = b'{"amount":1,"reason":"%s"}' % (b"x" * (size - around))
            assert size == len(body)
            return await client.post(path, content=body, headers={"Content-Type": "application/json"})

        named = len(b'{"order":}')
        assert 202 == (await post("/orders/7/refund", limit - named)).status_code
        for size in (limit - named + 1, limit + 1):
            problem(await post("/orders/7/refund", size), 413, "too-large")
        assert 202 == (await post("/small", 100)).status_code
        problem(await post("/small", 101), 413, "too-large")


async def test_a_full_topic_is_told_with_when_to_come_back(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", "hook", to=api, queue=queue)
    async with served(api) as client:
        await queue.limit("hook", 1)
        assert 202 == (await client.post("/hook")).status_code
        refused = await client.post("/hook")
        problem(refused, 503, "full")
        assert refused.headers["retry-after"]


# -- options, answers, places -----------------------------------------------------------------------------


async def test_options_come_from_the_request(make, queue):
    async def chosen(request, order):
        return {
            "id": f"{request.headers['x-tenant']}:{request.path_params['order_id']}",
            "delay": float(request.query_params["in"]),
            "priority": "high",
            "ttr": 7,
            "max_attempts": order.amount,
            "context": {"tenant": request.headers["x-tenant"]},
        }

    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, options=chosen)
    async with served(api, headers={"X-Tenant": "acme"}) as client:
        sent = datetime.now(UTC)
        accepted = await client.post("/orders/7/refund?in=60", json={"amount": 2}, headers={ID: "mine"})
        assert ("acme:7", "mine") == (accepted.json()["id"], accepted.headers[ID])
        assert "/orders/7/refund/acme:7" == accepted.headers["location"]
        job = await queue.job("refund", "acme:7").get()
        assert ("high", 7000, 2, "acme") == (
            job.priority,
            job.ttr_ms,
            job.envelope.max_attempts,
            job.envelope.context["tenant"],
        )
        # Rounded up to the millisecond.
        minute, rounded = timedelta(seconds=60), timedelta(milliseconds=1)
        assert sent + minute <= job.due_at <= datetime.now(UTC) + minute + rounded
        status = await client.get(accepted.headers["location"])
        assert (accepted.json(), "mine") == (status.json(), status.headers[ID])
        assert 50 <= int(status.headers["retry-after"]) <= 60
        wrong = await client.post("/orders/8/refund?in=-1", json={"amount": 2})
        assert "delay" == problem(wrong, 422, "invalid")["field"]


async def test_options_that_are_always_the_same_are_said_once(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", "hook", to=api, queue=queue, options={"delay": 60, "priority": "low"})
    async with served(api) as client:
        assert "scheduled" == (await client.post("/hook")).json()["state"]
    with pytest.raises(UsageError, match="did you mean delay"):
        async_endpoint("/other", "hook", to=api, queue=queue, options={"dealy": 60})


async def test_answers_can_be_made_to_measure(make, queue):
    async def submitted(request, job):
        return JSONResponse({"ticket": job.id}, 201)

    def status(request, job):
        told = AsyncJob.of(job)
        return None if told.state == "cancelled" else PlainTextResponse(told.state)

    def error(request, wrong):
        return PlainTextResponse(f"oops: {wrong.kind}", wrong.status)

    api = make(lifespan=lifespan(queue))
    async_endpoint(
        REFUND,
        refunding(queue),
        to=api,
        queue=queue,
        cancel=True,
        submitted=submitted,
        status=status,
        error=error,
    )
    async with served(api) as client:
        accepted = await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: "r"})
        assert (201, {"ticket": "r"}, "r") == (
            accepted.status_code,
            accepted.json(),
            accepted.headers[ID],
        )
        place = accepted.headers["location"]
        assert "ready" == (await client.get(place)).text
        assert 600 == (await client.delete(place)).json()["status_code"], "None means the usual answer"
        refused = await client.post("/orders/7/refund", json={})
        assert (422, "oops: invalid") == (refused.status_code, refused.text)
        assert "oops: job-not-found" == (await client.get("/orders/7/refund/none")).text
        ended = await client.get(place + "/result")
        assert (410, "oops: cancelled") == (ended.status_code, ended.text)


async def test_a_result_is_there_only_once_there_is_one(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, cancel=True)
    async with served(api) as client:
        accepted = await client.post("/orders/7/refund", json={"amount": 5, "reason": "bad"})
        place = accepted.headers["location"]
        early = await client.get(place + "/result", params={"wait": 0.01})
        assert "ready" == problem(early, 409, "unfinished")["state"]
        assert early.headers["retry-after"]
        wrong = await client.get(place, params={"wait": "long"})
        assert "wait" == problem(wrong, 422, "invalid")["field"]
        stop = asyncio.Event()
        worker = asyncio.create_task(queue.work(stop=stop, tracebacks=True))
        dead = problem(await client.get(place + "/result?wait=30"), 424, "dead")
        stop.set()
        await worker
        assert {"type": "buried", "message": "no such order"} == dead["error"]
        problem(await client.delete(place), 409, "conflict")


async def test_a_caller_that_prefers_to_wait_is_answered_with_the_end(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    body = {"amount": 5, "reason": "late"}
    async with served(api) as client:
        # The query is the handler's own: it asks for no wait.
        plain = await client.post("/orders/7/refund?wait=30", json=body)
        assert (202, "ready") == (plain.status_code, plain.json()["state"])
        early = await client.post("/orders/8/refund", json=body, headers={"Prefer": "wait=0.01"})
        assert (202, "ready") == (early.status_code, early.json()["state"])
        stop = asyncio.Event()
        worker = asyncio.create_task(queue.work(stop=stop))
        ended = await client.post("/orders/9/refund", json=body, headers={"Prefer": "wait=30"})
        stop.set()
        await worker
    assert (200, "succeeded") == (ended.status_code, ended.json()["state"])
    assert ended.headers["location"]
    assert ended.headers["x-async-request-id"]


async def test_tracebacks_are_not_for_callers(make, queue):
    @queue.handler("hook", max_attempts=1)
    async def hook() -> None:
        raise ValueError("inner")

    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", hook, to=api, queue=queue)
    async with served(api) as client:
        accepted = await client.post("/hook")
        stop = asyncio.Event()
        worker = asyncio.create_task(queue.work(stop=stop, tracebacks=True))
        told = await client.get(accepted.headers["location"] + "?wait=30")
        stop.set()
        await worker
        job = await queue.job("hook", told.json()["id"]).get()
    assert b"Traceback" in job.outcome
    assert {"type": "ValueError", "message": "inner"} == told.json()["error"]


async def test_a_running_job_is_cancelled_if_that_was_asked_for(make, queue):
    running, stopped = asyncio.Event(), asyncio.Event()

    @queue.handler("hook")
    async def hook() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    api = make(lifespan=lifespan(queue, work=True))
    async_endpoint("/hook", hook, to=api, queue=queue, cancel=True)
    async_endpoint("/firm", "firm", to=api, queue=queue)
    async with served(api) as client:
        accepted = await client.post("/hook")
        await running.wait()
        assert 600 == (await client.delete(accepted.headers["location"])).json()["status_code"]
        async with asyncio.timeout(30):
            await stopped.wait()
        firm = await client.post("/firm")
        assert 405 == (await client.delete(firm.headers["location"])).status_code


async def test_a_status_shows_only_jobs_of_its_own_path(make, queue):
    refund = refunding(queue)
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refund, to=api, queue=queue, cancel=True)
    async_endpoint("/admin/refunds", refund, to=api, queue=queue, cancel=True)
    async with served(api) as client:
        await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: "theirs"})
        await queue.enqueue(refund.job(Refund(amount=1)), id="inner")
        for path in (
            "/orders/8/refund/theirs",
            "/admin/refunds/theirs",
            "/orders/7/refund/inner",
            "/orders/7/refund/none",
            "/orders/7/refund/a b",
        ):
            problem(await client.get(path), 404, "job-not-found")
            problem(await client.get(path + "/result"), 404, "job-not-found")
            problem(await client.delete(path), 404, "job-not-found")
        assert 200 == (await client.get("/orders/7/refund/theirs")).status_code


async def test_the_status_may_be_elsewhere(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(
        "/orders/{order_id:int}/refund",
        refunding(queue),
        to=api,
        queue=queue,
        status_path="/refunds/{order_id:int}/{job_id}",
    )
    async with served(api) as client:
        accepted = await client.post("/orders/007/refund", json={"amount": 5}, headers={ID: "r"})
        assert "/refunds/7/r" == accepted.headers["location"]
        assert "r" == (await client.get("/refunds/7/r")).json()["id"]
        problem(await client.get("/refunds/8/r"), 404, "job-not-found")


@pytest.mark.parametrize("status_path", [None, "/jobs/{job_id}"])
async def test_it_may_be_mounted_below_another_path(queue, status_path):
    refund = refunding(queue)
    below = {"starlette": Router(), "fastapi": APIRouter()}
    for router in below.values():
        async_endpoint(REFUND, refund, to=router, queue=queue, status_path=status_path)
    api = FastAPI(lifespan=lifespan(queue))
    api.include_router(below["fastapi"], prefix="/v1")
    sub = FastAPI()
    async_endpoint(REFUND, refund, to=sub, queue=queue, status_path=status_path)
    api.mount("/sub", sub)
    api.router.routes.append(Mount("/star", below["starlette"]))
    async with served(api) as client:
        for prefix in ("/v1", "/sub", "/star"):
            accepted = await client.post(f"{prefix}/orders/7/refund", json={"amount": 5})
            assert 202 == accepted.status_code, accepted.text
            id_ = accepted.json()["id"]
            place = f"/jobs/{id_}" if status_path else f"/orders/7/refund/{id_}"
            assert prefix + place == accepted.headers["location"]
            assert id_ == (await client.get(accepted.headers["location"])).json()["id"]


async def test_the_root_path_of_a_proxy_is_part_of_the_location(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", "hook", to=api, queue=queue)
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(api, root_path="/shop"), base_url="http://shop"
        ) as client,
    ):
        accepted = await client.post("/hook", headers={ID: "h"})
        assert "/shop/hook/h" == accepted.headers["location"]


async def test_the_queue_is_opened_on_first_use_where_no_lifespan_does(make, queue):
    api = make()
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert queue.loop is None
        assert 202 == (await client.post("/orders/7/refund", json={"amount": 5})).status_code
        assert queue.loop is not None
    await queue.aclose()


async def test_dependencies_of_fastapi_guard_all_routes(queue):
    def guard():
        raise HTTPException(401, "who are you?")

    router = APIRouter(dependencies=[Depends(guard)])
    async_endpoint(REFUND, refunding(queue), to=router, queue=queue, cancel=True)
    api = FastAPI(lifespan=lifespan(queue))
    api.include_router(router)
    async with served(api) as client:
        answers = [
            await client.post("/orders/7/refund", json={"amount": 5}),
            await client.get("/orders/7/refund/r"),
            await client.get("/orders/7/refund/r/result"),
            await client.delete("/orders/7/refund/r"),
        ]
        assert [401] * 4 == [each.status_code for each in answers]
        assert [] == await stored(queue)


# -- mistakes of who writes the app -----------------------------------------------------------------------


async def test_what_cannot_work_is_said_when_the_app_is_made(make, queue):
    refund = refunding(queue)
    api = make()

    def plain() -> None: ...

    def unread(body: Elsewhere) -> None: ...  # noqa: F821  # as when it is imported for type checkers only

    other = Duly("unix:///nowhere")
    mistakes = [
        (
            {"handler": queue.handler("unread")(unread)},
            "'Elsewhere' is not defined.*at the top of the module",
        ),
        ({"handler": plain}, "no handler; decorate it"),
        ({"handler": "a topic"}, "invalid topic"),
        ({"queue": other}, "no handler of this queue"),
        ({"methods": ["GET"]}, "must be some of POST, PUT"),
        ({"methods": "POST"}, "must be some of POST, PUT"),
        ({"methods": []}, "must be some of POST, PUT"),
        ({"path": "orders"}, "must begin with a slash"),
        ({"path": "/{a}/{a}"}, "Duplicated param name"),
        ({"path": "/{a:b}"}, "Unknown path convertor"),
        ({"path": "/jobs/{job_id}"}, "which is the name of the job"),
        ({"status_path": "/status"}, "have {job_id}"),
        ({"status_path": "/{other}/{job_id}"}, "only values of the path"),
        ({"allow_headers": ["Authorization"]}, "stored with the job"),
        ({"allow_headers": "X-Tenant"}, "must be a list of names"),
        ({"to": object()}, "an app or a router"),
    ]
    for change, said in mistakes:
        good = {"path": REFUND, "handler": refund, "to": api, "queue": queue}
        with pytest.raises(UsageError, match=said):
            async_endpoint(**(good | change))
    async_endpoint(REFUND, refund, to=api, queue=queue, methods=["PUT"])
    with pytest.raises(UsageError, match="say another status_path"):
        async_endpoint(REFUND, refund, to=api, queue=queue, methods=["DELETE"])
    async_endpoint(REFUND, refund, to=api, queue=queue, methods=["DELETE"], status_path="/deleted/{job_id}")
    with pytest.raises(UsageError, match="only known inside"):
        current_request()


async def test_a_hook_that_answers_with_something_else_is_a_fault_and_no_bad_request(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/a", "a", to=api, queue=queue, validate=lambda *_: {"no": "response"})
    async_endpoint("/b", "b", to=api, queue=queue, options=lambda *_: {"dealy": 5})
    async with served(api) as client:
        with pytest.raises(TypeError, match="must return a Response or None, not dict"):
            await client.post("/a")
        with pytest.raises(TypeError, match="did you mean delay"):
            await client.post("/b")
        assert [] == await stored(queue)


async def test_a_job_that_was_sent_in_another_way_has_no_request(queue):
    @queue.handler("hook")
    async def hook() -> str:
        with pytest.raises(UsageError, match="was not sent by an async endpoint") as caught:
            current_request()
        return str(caught.value)

    async with queue:
        stop = asyncio.Event()
        worker = asyncio.create_task(queue.work(stop=stop))
        job = await queue.enqueue(hook.job())
        assert f"hook/{job.id}" in await job.result(timeout=30)
        stop.set()
        await worker
