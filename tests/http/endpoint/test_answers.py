"""
Options from the request, answers made to measure, and jobs that are waited for or cancelled.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from duly import Duly, Fixed, UsageError
from duly.contrib.fastapi import lifespan
from duly.http import AsyncJob, async_endpoint
from duly.record.schema import migrate
from tests.http.conftest import problem
from tests.http.endpoint.kit import ID, REFUND, refunding, served


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


TERMS = {
    "delay": 60,
    "expires": datetime(2036, 1, 31, tzinfo=UTC),
    "ttr": 90,
    "max_attempts": 7,
    "backoff": Fixed(5),
    "context": {"tenant": "acme"},
    "retain": 3600,
    "reply_to": "inbox",
}
OPTIONS = {
    "nothing": {},
    "everything": TERMS | {"priority": "high"},
    "everything of a callback": TERMS | {"callback": "https://example.com/hook?secret=1"},
}


@pytest.mark.parametrize("recorded", [False, True], ids=["queue", "record"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_the_first_answer_is_the_document_of_the_job(
    make, valkey, namespace, tmp_path, recorded, options
):
    url = f"sqlite:///{tmp_path}/record.db" if recorded else None
    if url:
        migrate(url)
    queue = Duly(valkey.url, namespace=namespace, record=url)
    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", "hook", to=api, queue=queue, options=options)
    async with served(api) as client:
        accepted = await client.post("/hook", json={"a": 1})
        assert accepted.json() == (await client.get(accepted.headers["location"])).json()
        repeated = await client.post("/hook", json={"a": 1}, headers={ID: accepted.headers[ID]})
        assert (accepted.headers["location"], accepted.json()) == (
            repeated.headers["location"],
            repeated.json(),
        )


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
        assert 600 == (await client.delete(place)).json()["state_code"], "None means the usual answer"
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
        place, dead_id = accepted.headers["location"], accepted.json()["id"]
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
        assert {"type": "buried", "reference": f"{dead_id}#1"} == dead["error"]
        problem(await client.delete(place), 409, "conflict")


async def test_what_a_caller_has_is_not_sent_again_and_only_what_it_saw_is_cancelled(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue, cancel=True)
    async with served(api) as client:
        accepted = await client.post("/orders/7/refund", json={"amount": 5, "reason": "late"})
        place = accepted.headers["location"]
        tag = (await client.get(place)).headers["etag"]
        same = await client.get(place, headers={"If-None-Match": tag})
        assert (304, b"", tag) == (same.status_code, same.content, same.headers["etag"])
        assert same.headers["retry-after"]
        refused = await client.delete(place, headers={"If-Match": '"1"'})
        assert problem(refused, 412, "outdated")
        assert tag == refused.headers["etag"]
        stop = asyncio.Event()
        worker = asyncio.create_task(queue.work(stop=stop))
        result = await client.get(place + "/result?wait=30", headers={"If-None-Match": tag})
        stop.set()
        await worker
        assert 200 == result.status_code
        kept = {"If-None-Match": (await client.get(place)).headers["etag"]}
        assert [304, 304] == [
            (await client.get(each, headers=kept)).status_code for each in (place, place + "/result")
        ]


async def test_if_match_holds_for_status_and_result(make, queue):
    api = make(lifespan=lifespan(queue, work=True))
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    async with served(api) as client:
        accepted = await client.post("/orders/7/refund", json={"amount": 5})
        place = accepted.headers["location"]
        tag = (await client.get(place, params={"wait": 30})).headers["etag"]
        for each in (place, place + "/result"):
            assert 200 == (await client.get(each, headers={"If-Match": tag})).status_code
            refused = await client.get(each, headers={"If-Match": '"1"', "If-None-Match": tag})
            assert "If-Match" == problem(refused, 412, "outdated")["field"]
            assert tag == refused.headers["etag"]


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


@pytest.mark.parametrize("shown", [False, True])
async def test_what_an_exception_says_is_not_for_callers_unless_that_was_asked_for(make, queue, shown):
    @queue.handler("hook", max_attempts=1)
    async def hook() -> None:
        raise ValueError("inner")

    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", hook, to=api, queue=queue, show_errors=shown)
    async with served(api) as client:
        accepted = await client.post("/hook")
        place, id_ = accepted.headers["location"], accepted.json()["id"]
        stop = asyncio.Event()
        worker = asyncio.create_task(queue.work(stop=stop, tracebacks=True))
        told = await client.get(place + "?wait=30")
        stop.set()
        await worker
        answers = [
            told,
            await client.get(place + "/result"),
            await client.post("/hook", headers={"X-Async-Request-Id": id_}),
        ]
        job = await queue.job("hook", id_).get()
    assert b"Traceback" in job.outcome
    expected = {"message": "inner"} if shown else {"reference": f"{id_}#1"}
    for each in answers:
        assert {"type": "ValueError", **expected} == each.json()["error"]
        assert "Traceback" not in each.text


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
        assert 600 == (await client.delete(accepted.headers["location"])).json()["state_code"]
        async with asyncio.timeout(30):
            await stopped.wait()
        firm = await client.post("/firm")
        assert 405 == (await client.delete(firm.headers["location"])).status_code
