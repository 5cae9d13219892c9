"""
Mistakes of who writes the app.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Duly, UsageError
from duly.contrib.fastapi import lifespan
from duly.http import async_endpoint, current_request
from tests.http.endpoint.kit import REFUND, refunding, served, stored


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
