"""
What is refused: bodies, headers, and what a validator or a full queue says no to.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from starlette.responses import JSONResponse

from duly import Duly
from duly.contrib.fastapi import lifespan
from duly.http import async_endpoint
from tests.http.conftest import problem
from tests.http.endpoint.kit import ID, MODELS, REFUND, Refund, RefundStruct, refunding, served, stored


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


async def test_two_ids_of_one_request_are_refused(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        refused = await client.post("/orders/7/refund", json={"amount": 5}, headers=[(ID, "a"), (ID, "b")])
        assert ID == problem(refused, 422, "invalid")["field"]
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
            document = problem(await asked, 500, "fault")
            assert document["reference"] in caplog.text
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


@pytest.mark.one_shard("with a limit of one, every shard takes a job")
async def test_a_full_topic_is_told_with_when_to_come_back(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", "hook", to=api, queue=queue)
    async with served(api) as client:
        await queue.limit("hook", 1)
        assert 202 == (await client.post("/hook")).status_code
        refused = await client.post("/hook")
        problem(refused, 503, "full")
        assert refused.headers["retry-after"]


@pytest.mark.parametrize("body", [b'"\xff"', b"1e999", b"[" * 501 + b"]" * 501, b"[" * 5_000 + b"]" * 5_000])
async def test_a_body_that_no_worker_could_read_is_refused(make, queue, body):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/orders", "orders", to=api, queue=queue)
    async with served(api) as client:
        answer = await client.post("/orders", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["detail"]
        assert [] == await stored(queue)
