"""
Workers over connections that fall silent without a reset.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from duly import connection
from duly.connection import TRY_S
from duly.scripts import library
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.services.conftest import becomes, tally, working


@pytest.fixture
async def proxy(valkey):
    proxy = Proxy(valkey.socket)
    yield proxy
    await asyncio.to_thread(proxy.close)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_job_whose_claim_was_not_answered_starts_soon_and_no_crash_is_counted(make_app, proxy, times):
    """
    Three in a row would have buried it, had each been the claim of a worker that died.
    """
    app, far = make_app(), make_app(proxy.url)

    @far.handler("quick")
    async def quick() -> str:
        return "done"

    job = await app.enqueue("quick", {})
    proxy.cut("silent", library().function("claim"), times=times)
    async with working(far):
        # A lease is 15 s long; a try is one.
        assert "done" == await job.result(timeout=times * TRY_S + 8)
    assert times == proxy.made
    assert ("succeeded", 1, 0) == await tally(job)


async def test_a_worker_goes_on_when_all_of_its_connections_fell_silent(make_app, proxy):
    app, far = make_app(), make_app(proxy.url, lease=6)
    gate = asyncio.Event()

    @far.handler("held")
    async def held() -> str:
        await gate.wait()
        return "kept"

    @far.handler("quick")
    async def quick() -> str:
        return "done"

    async with working(far):
        running = await app.enqueue("held", {})
        await becomes(running, "running")
        begun_s = time.monotonic()
        proxy.silence()
        assert "done" == await (await app.enqueue("quick", {})).result(timeout=30)
        assert "done" == await (await app.enqueue("quick", {}, delay=0.2)).result(timeout=30)
        # The heart must have found out, too: more than a lease has gone by.
        await asyncio.sleep(max(0.0, 8 - (time.monotonic() - begun_s)))
        gate.set()
        assert "kept" == await running.result(timeout=30)
    assert ("succeeded", 1, 0) == await tally(running)


async def test_outcomes_do_not_wait_behind_a_silent_connection(make_app, proxy, monkeypatch):
    monkeypatch.setattr(connection, "TRY_S", 6.0)
    app, far = make_app(), make_app(proxy.url, socket_timeout=30)

    @far.handler("quick")
    async def quick() -> None: ...

    async with working(far):
        proxy.cut("silent", library().function("ack"))
        await app.enqueue("quick", {}, id="held")
        await eventually(lambda: proxy.made == 1)
        begun_s = time.monotonic()
        for _ in range(20):
            await (await app.enqueue("quick", {})).result(timeout=30)
        assert time.monotonic() - begun_s < 5
    assert ("succeeded", 1, 0) == await tally(app.job("quick", "held"))
