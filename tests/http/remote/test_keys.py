"""
API keys, and the rate that a service allows.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Duly, JobState, ServerUnsuitable, StoreUnavailable, UsageError
from duly.apikeys import KeyRing
from duly.http.api import api
from duly.http.settings import ServiceSettings
from duly.remote.link import RemoteLink
from tests.http.remote.kit import serving


async def test_a_key_opens_what_it_is_for(url, app, monkeypatch, caplog):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    ring = KeyRing(await app.store())
    text, _ = await ring.create("shop", ["enqueue"])
    async with Duly(url, api_key=text) as remote:
        sent = await remote.enqueue("mail", id="a", delay=60)
        assert "kept" == (await remote.enqueue("mail", id="a")).placed.word, "without the right to read"
        assert JobState.cancelled is await sent.cancel()
        with pytest.raises(ServerUnsuitable, match="has not the scope read"):
            await sent.get()
    for wrong in ("duly_x_wrong-key-in-here", None):
        async with Duly(url, api_key=wrong) as remote:
            with pytest.raises(ServerUnsuitable, match="DULY_API_KEY") as caught:
                await remote.enqueue("mail")
            assert "wrong-key-in-here" not in f"{caught.value} {remote.settings!r} {caplog.text}"
    monkeypatch.setenv("DULY_API_KEY", text)
    async with Duly(url) as remote:
        assert (await remote.enqueue("mail")).created


def test_a_key_in_the_open_is_warned_of(caplog):
    asyncio.run(_made("http://127.0.0.1:1", "https://queue.example"))
    assert "" == caplog.text
    asyncio.run(_made("http://queue.example"))
    assert "use https" in caplog.text
    assert "secret" not in caplog.text


async def _made(*urls):
    for url in urls:
        await RemoteLink(url, api_key="secret").aclose()


async def test_too_many_requests_wait_as_long_as_they_are_told(app):
    async with serving(api(app, ServiceSettings(rate=2, burst=1))) as url, Duly(url) as remote:
        handles = [await remote.enqueue("mail", n) for n in range(3)]
        assert all(handle.created for handle in handles)
    async with serving(api(app, ServiceSettings(rate=0.01, burst=1))) as url, Duly(url) as remote:
        await remote.enqueue("mail")
        with pytest.raises(StoreUnavailable, match=r"more than its rate.*in \d+ s"):
            await remote.enqueue("mail")


@pytest.mark.parametrize("key", ["", "with space", "ü", "line\n"])
def test_a_key_that_is_none_is_refused_without_showing_it(key):
    with pytest.raises(UsageError, match="api_key must") as caught:
        Duly("https://queue.example", api_key=key)
    assert not key or key not in str(caught.value)
