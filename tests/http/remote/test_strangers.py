"""
Somebody else at that URL, or nobody.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys

import pytest

from duly import Duly, JobExists, OutcomeUnknown, ServerUnsuitable, StoreUnavailable, UsageError
from duly.newjob import new_job
from duly.remote.link import RemoteLink
from tests import certificates
from tests.http.remote.kit import NOT_FOUND
from tests.http.wire import host


@pytest.mark.parametrize(
    "answer",
    [
        "200 OK\nContent-Type: text/html\n\n<html>",
        "404 Not Found\nContent-Type: application/json\n\n{}",
        '404 Not Found\nContent-Type: application/problem+json\n\n{"type":"about:blank"}',
        "404 Not Found\nContent-Type: application/problem+json\n\nnonsense",
        "500 Oh\n\n",
    ],
)
async def test_what_is_no_duly_service_is_told_so(answer):
    async with host(answer) as (url, _):
        with pytest.raises(ServerUnsuitable, match="no duly service"):
            await Duly(url).queue()


async def test_an_answer_in_other_words_is_no_service():
    answer = '200 OK\nContent-Type: application/json\n\n{"ok":true}'
    async with host(NOT_FOUND, answer) as (url, _), Duly(url) as remote:
        for call in (
            remote.enqueue("mail"),
            remote.job("mail", "a").get(),
            remote.enqueue_many([remote_job(remote)]),
        ):
            with pytest.raises(ServerUnsuitable):
                await call


def remote_job(remote):
    return new_job("mail", None, remote.settings.limits)


async def test_a_redirect_is_not_followed_and_the_key_stays_here():
    async with host("200 OK\nContent-Type: application/json\n\n{}") as (elsewhere, asked):
        async with host(f"307 Elsewhere\nLocation: {elsewhere}/v1\n\n") as (url, _):
            with pytest.raises(ServerUnsuitable, match="sends us to"):
                await Duly(url, api_key="secret").queue()
        assert [] == asked


@pytest.mark.parametrize(
    "status", ["502 Bad Gateway", "503 Busy\nRetry-After: 1", "429 Slow\nRetry-After: 1"]
)
async def test_a_gateway_that_fails_for_a_moment_is_waited_for(status):
    job = '{"topic":"mail","id":"a","state":"ready","revision":1}'
    answer = f"202 Accepted\nContent-Type: application/json\n\n{job}"
    async with host(NOT_FOUND, status, answer) as (url, asked), Duly(url) as remote:
        assert (await remote.enqueue("mail", id="a")).created
        assert 3 == len(asked)
        assert asked[1] == asked[2], "the same request, so the same job"


async def test_a_retry_comes_no_sooner_than_it_was_asked_for():
    full = '409 Conflict\nContent-Type: application/problem+json\n\n{"type":"urn:duly:problem:exists"}'
    loop = asyncio.get_running_loop()
    for status in ("429 Slow", "503 Busy"):
        answers = (NOT_FOUND, f"{status}\nRetry-After: 1\n\n", full)
        async with host(*answers) as (url, asked), Duly(url) as remote:
            began = loop.time()
            # What a gateway lost may have run, but both have the same key: it is the first answer.
            with pytest.raises(JobExists):
                await remote.enqueue("mail", id="a", on_conflict="raise")
            assert (3, True) == (len(asked), loop.time() - began >= 1)


async def test_a_certificate_that_is_not_trusted_is_refused_at_once(tmp_path, monkeypatch):
    certificates.make(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "s.crt", tmp_path / "s.key")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with host(NOT_FOUND, tls=tls) as (url, asked):
        with pytest.raises(ServerUnsuitable, match="SSL_CERT_FILE"):
            await Duly(url).queue()
        assert [] == asked
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        async with Duly(url):
            assert 1 == len(asked)


async def test_nobody_at_all_is_told_so_in_time():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening
        link = RemoteLink(f"http://127.0.0.1:{taken.getsockname()[1]}", patience_s=0.1)
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await link.look()
        await link.aclose()


async def test_a_service_that_says_nothing_is_not_waited_for_for_ever():
    async with host() as (url, _):
        link = RemoteLink(url, patience_s=0.0, timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await link.look()
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await link.call("POST", "/v1", body=b"{}")
        await link.aclose()


async def test_a_prefix_in_the_url_stays(wire, app):
    async with host(NOT_FOUND) as (url, asked):
        async with Duly(f"{url}/queues/first/"):
            pass
        assert asked[0].startswith(b"GET /queues/first/v1 ")


def test_a_missing_client_is_a_sentence(tmp_path):
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import asyncio; from duly import Duly, UsageError\n"
        "try: asyncio.run(Duly('http://127.0.0.1:1').enqueue('mail'))\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ("", True) == (done.stderr, "pip install 'duly[client]'" in done.stdout), done


@pytest.mark.parametrize(
    "url", ["http://", "https://user:pw@queue.example", "https://queue.example?a=b", "http://queue.example:x"]
)
def test_a_url_that_is_no_service_is_refused_without_showing_it(url):
    with pytest.raises(UsageError, match="HTTP service") as caught:
        Duly(url)
    assert "pw" not in str(caught.value)
