"""
What only happens where there is a service on the way.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from starlette.responses import JSONResponse

from duly import Duly, Unsupported, UsageError
from duly.http.api import OPERATIONS, api
from duly.http.operations import TOPIC, Answer, Operation
from duly.http.service import make_service
from duly.http.settings import ServiceSettings
from duly.newjob import new_job
from tests.http.remote.kit import serving, working


async def test_what_needs_the_server_says_so(remote):
    views = await remote.views()
    for call in (
        remote.work,
        remote.deliver,
        remote.store,
        remote.key_ring,
        views.replies_dropped,
        lambda: views.waiting_since("mail"),
        lambda: views.due_counts([0, 1]),
    ):
        with pytest.raises(Unsupported, match="redis://"):
            await call()
    for call in (remote.record, remote.promises):
        with pytest.raises(Unsupported, match="own server"):
            await call()
    with pytest.raises(Unsupported, match="redis://"):
        remote.make_store()
    queue = await remote.queue()
    with pytest.raises(Unsupported, match="redis://"):
        await queue.claim("mail", worker="w", limit=1)
    with pytest.raises(AttributeError, match="'RemoteStore' object has no attribute 'clam'"):
        await queue.clam("mail")
    with pytest.raises(Unsupported, match="redis://"):
        (await remote.waiters()).expecting("mine")


async def test_the_time_is_the_services(remote):
    assert abs(await (await remote.views()).now_ms() - datetime.now(UTC).timestamp() * 1000) < 60_000


async def test_topics_are_listed_where_the_service_can(app):
    async def list_(service, request):
        return JSONResponse({"topics": [{"topic": "mail", "ready": 1}, {"topic": "sms"}]})

    operation = Operation(
        name="list",
        method="GET",
        path="/v1/topics",
        about="",
        run=list_,
        scope="read",
        answers={200: Answer("topics")},
    )
    without = [each for each in OPERATIONS if each.path != operation.path]
    async with serving(make_service(app, without)) as url, Duly(url) as unable:
        with pytest.raises(UsageError, match="redis://"):
            await (await unable.views()).topics()
    async with serving(make_service(app, [*without, operation])) as url, Duly(url) as able:
        assert ["mail", "sms"] == await (await able.views()).topics()


@pytest.mark.parametrize("verb", ["pause", "resume", "limit"])
async def test_topics_are_steered_where_the_service_can_and_else_it_is_said_what_to_use(app, verb):
    arguments = ("mail", 5) if verb == "limit" else ("mail",)
    asked = []

    async def steer(service, request):
        asked.append((request.path_params["topic"], await request.body()))
        return JSONResponse({})

    operation = Operation(
        name="steer",
        method="PUT" if verb == "limit" else "POST",
        path=f"/v1/topics/{{topic}}/{verb}",
        about="",
        run=steer,
        scope="admin",
        parameters=(TOPIC,),
        answers={200: Answer("done")},
    )
    without = [each for each in OPERATIONS if each.path != operation.path]
    async with serving(make_service(app, without)) as url, Duly(url) as unable:
        with pytest.raises(UsageError, match=f"duly topics {'set' if verb == 'limit' else verb}"):
            await getattr(unable, verb)(*arguments)
    async with serving(make_service(app, [*without, operation])) as url, Duly(url) as able:
        await getattr(able, verb)(*arguments)
    assert [("mail", b'{"limit":5}' if verb == "limit" else b"")] == asked


async def test_what_the_service_finds_too_large_is_refused(app):
    async with serving(api(app, ServiceSettings(body_limit=1000))) as url, Duly(url) as remote:
        with pytest.raises(UsageError, match="1000 bytes"):
            await remote.enqueue("mail", "x" * 2000)
        [small, large] = await remote.enqueue_many(
            [new_job("mail", text, remote.settings.limits) for text in ("x", "x" * 2000)]
        )
        assert small.created
        assert isinstance(large, UsageError)


async def test_more_may_wait_than_there_are_connections(remote, app):
    jobs = [remote.add.job(number) for number in range(100)]
    handles = await remote.enqueue_many(jobs)
    waiting = [asyncio.create_task(handle.result(timeout=60)) for handle in handles]
    await asyncio.sleep(0)
    assert (await remote.enqueue("add", {"left": 1})).created, "whoever waits keeps nobody from sending"
    async with working(app):
        assert [{"sum": number} for number in range(100)] == await asyncio.gather(*waiting)
