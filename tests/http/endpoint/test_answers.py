"""
Options from the request, answers made to measure, and jobs that are waited for or cancelled.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from duly import UsageError
from duly.contrib.fastapi import lifespan
from duly.http import AsyncJob, async_endpoint
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
