"""
A test bed takes an app and gives it back as it was.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest
import redis

from duly import Duly, Settings, UsageError
from duly.testing import TestBed, TestClock


@pytest.fixture
def app():
    app = Duly(settings=Settings(url="redis://localhost:1/0", namespace="shop"))

    @app.handler("double")
    async def double(number: int) -> int:
        return 2 * number

    return app


async def test_the_app_is_given_back_with_its_own_settings(duly_server, app):
    before = app.settings
    async with TestBed(app, duly_server) as bed:
        assert (duly_server, bed.namespace) == (app.settings.url, app.settings.namespace)
        await app.enqueue("double", 4)
        assert [8] == [ran.result for ran in await bed.drain()]
    assert before is app.settings
    assert app.loop is None


async def test_nothing_of_a_test_is_left_on_the_server(duly_server, app):
    with redis.Redis.from_url(duly_server) as raw:
        async with TestBed(app, duly_server) as bed:
            await app.enqueue_many([app.handlers.get("double").job(1) for _ in range(3)])
            await app.enqueue("other", {}, delay=9)
            await bed.drain()
            assert raw.keys(f"{{{bed.namespace}:*")
        assert [] == raw.keys(f"{{{bed.namespace}:*")


async def test_each_test_bed_has_jobs_of_its_own(duly_server, app):
    for _ in range(2):
        async with TestBed(app, duly_server) as bed:
            await app.enqueue("double", 4, id="same")
            assert 1 == len(bed.jobs())


def test_a_plain_test_function_uses_the_blocking_form(duly_server, app):
    with TestBed(app, duly_server) as bed:
        handle = bed.sync.run(app.enqueue("double", 4, delay=60))
        assert () == bed.sync.drain()
        bed.clock.advance(minutes=1)
        assert [8] == [ran.result for ran in bed.sync.drain(raises=True)]
        assert 8 == bed.sync.run(handle.result(timeout=10))


TENANT: ContextVar[str] = ContextVar("tenant")


def test_the_blocking_form_takes_the_context_variables_of_each_call(duly_server, app):
    @app.handler("tenant")
    def tenant() -> str:
        return TENANT.get()

    @app.handler("tenant.async")
    async def tenant_async() -> str:
        return TENANT.get()

    async def read() -> str:
        return TENANT.get()

    with TestBed(app, duly_server) as bed:
        for name in ("a", "b"):
            TENANT.set(name)
            app.sync.enqueue(tenant.job())
            app.sync.enqueue(tenant_async.job())
            assert [name] * 2 == [ran.result for ran in bed.sync.drain(raises=True)]
            assert name == bed.sync.run(read())


async def test_the_blocking_form_in_an_async_test_is_refused(duly):
    with pytest.raises(UsageError, match="this is an async test: `await`"):
        duly.sync.drain()


async def test_the_blocking_form_of_with_in_an_async_function_is_refused(duly_server, app):
    with pytest.raises(UsageError, match="say `async with` instead of `with`"), TestBed(app, duly_server):
        pass


async def test_an_app_is_in_one_test_bed_at_a_time(duly_server, app):
    async with TestBed(app, duly_server):
        with pytest.raises(UsageError, match="another test bed"):
            await TestBed(app, duly_server).__aenter__()
    async with TestBed(app, duly_server):
        pass


async def test_an_app_that_is_connected_elsewhere_is_refused(duly_server):
    app = Duly(duly_server, namespace="connected")
    async with app:
        with pytest.raises(
            UsageError, match=r"the app is connected: close it first, with `await app.aclose\(\)`"
        ):
            await TestBed(app, duly_server).__aenter__()


def test_a_loop_that_a_test_closed_itself_is_no_hindrance(duly_server, app):
    async def send() -> None:
        async with app:
            await app.enqueue("double", 4)

    with TestBed(app, duly_server) as bed:
        asyncio.run(send())
        asyncio.run(send())
        bed.assert_enqueued("double", count=2)
        assert 2 == len(bed.sync.drain())


async def test_a_worker_in_a_test_is_refused_because_the_clock_stands_still(duly):
    @duly.app.handler("mail")
    async def mail() -> None: ...

    with pytest.raises(UsageError, match=r"the clock of this test stands still: use `await duly.drain\(\)`"):
        await duly.app.work()


async def test_by_the_clock_of_the_server_workers_work(duly_for, app):
    duly_for(app, clock="server")
    stop = asyncio.Event()
    work = asyncio.create_task(app.work(stop=stop))
    assert 8 == await (await app.enqueue("double", 4, delay=0.01)).result(timeout=30)
    stop.set()
    await work


async def test_two_apps_can_share_a_clock(duly_for, app):
    clock = TestClock()
    one, two = duly_for(app, clock=clock), duly_for(Duly(settings=Settings()), clock=clock)
    await one.app.enqueue("double", 1, delay=60)
    await two.app.enqueue("double", 1, delay=60)
    clock.advance(minutes=1)
    assert ["0:00:00"] * 2 == [str(bed.jobs()[0].delay) for bed in (one, two)]


def test_a_clock_that_is_none_is_refused(duly_server, app):
    with pytest.raises(UsageError, match="clock must be"):
        TestBed(app, duly_server, clock="wall")
