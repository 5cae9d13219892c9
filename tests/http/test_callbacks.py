"""
Callbacks over HTTP: what a request may ask for, and what is refused.
"""

from __future__ import annotations

import pytest

from duly import Duly, UsageError
from duly.http.asyncjob import AsyncJob
from duly.job import JobKey
from tests.http.conftest import problem


@pytest.fixture
def app(valkey, namespace):
    return Duly(valkey.url, namespace=namespace, callback_allow="*.internal, 127.0.0.1:54321")


async def test_a_job_may_name_a_callback(client, app):
    url = "https://example.com/hook"
    response = await client.post("/v1/topics/mail/jobs", json={"id": "a", "payload": 1, "callback": url})
    assert 202 == response.status_code
    assert url == (await (await app.views()).get(JobKey("mail", "a"))).envelope.callback
    assert url == response.json()["callback"], "who may read the job may read where it is sent"


async def test_callers_of_an_endpoint_are_not_told_the_query_of_a_callback(app):
    handle = await app.enqueue("mail", 1, callback="https://example.com/hook?token=hunter2")
    assert "https://example.com/hook" == AsyncJob.of(await handle.get()).callback


async def test_a_batch_may_name_callbacks(client):
    lines = b'{"callback":"https://example.com/"}\n{"callback":"no url"}\n'
    response = await client.post(
        "/v1/topics/mail/jobs:batch", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    assert ['"created"', '"refused"'] == [
        line.partition('"outcome":')[2].partition(",")[0] for line in response.text.splitlines()
    ]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:54321/hook",
        "HTTPS://Example.com",
        "http://my_host.internal:30080/a|b?c=[1]",
        "https://xn--bcher-kva.example./x",
        "https://BÜCHER.example/",
        "https://[2606:4700:4700::1111]:8443/",
    ],
)
async def test_what_is_a_callback_in_python_is_one_over_http(client, app, url):
    await app.enqueue("mail", id="python", callback=url)
    response = await client.post("/v1/topics/mail/jobs", json={"id": "http", "callback": url})
    assert 202 == response.status_code, response.text
    for id_ in ("python", "http"):
        assert url == (await app.job("mail", id_).get()).envelope.callback
    assert 200 == (await client.put("/v1/topics/mail/callback", json={"url": url})).status_code


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "must be a URL"),
        ("hook", "must be a URL"),
        ("https://example.com/#part", "without a #fragment"),
        ("https://" + "a" * 2000, "2008 characters"),
        ("ftp://example.com/", "not to ftp"),
        ("https://a:hunter2@example.com/", "a user or a password"),
        ("https:///hook", "no host"),
        ("https://-a.example/", "neither begin nor end with -"),
        ("https://a b.example/", "letters, digits"),
        ("https://example.com:65536/", "port 65536 must be from 1 to 65535"),
        ("https://example.com:x/", "a host and a port"),
        ("https://[::zz]/", "no IPv6 address"),
        ("https://0x7f000001/", "four decimal numbers"),
        ("https://a\u00a0b.example/", "IDNA"),
        ("https://example.com/a b", "%XX"),
        # What no deliverer with these settings will ever reach.
        ("https://10.1.2.3/", "10.1.2.3 is at an address that is private"),
        ("https://169.254.169.254/latest", "link-local"),
        ("http://127.0.0.1:54322/hook", "loopback"),
        ("https://localhost/", "loopback"),
        ("https://Web.LocalHost./", "loopback"),
        ("https://[::ffff:10.0.0.1]/", "in disguise"),
        ("http://93.184.215.14/", "over https only"),
        ("https://93.184.215.14:22/", "only 443 and 8443 are open"),
    ],
)
async def test_what_is_refused_is_refused_at_once_and_everywhere_for_the_same_reason(client, app, url, why):
    with pytest.raises(UsageError) as python:
        await app.enqueue("mail", callback=url)
    said = str(python.value)
    assert why in said
    job = {"callback": url}
    document = problem(await client.post("/v1/topics/mail/jobs", json=job), 422, "invalid")
    assert (said, "callback") == (document["detail"], document["field"])
    batch = await client.post("/v1/topics/mail/jobs:batch", json=[job])
    assert said == batch.json()["problem"]["detail"]
    document = problem(await client.put("/v1/topics/mail/callback", json={"url": url}), 422, "invalid")
    assert (said, "url") == (document["detail"], document["field"])
    with pytest.raises(UsageError) as topic:
        await app.callback("mail", url)
    assert said == str(topic.value)
    assert "hunter2" not in said


async def test_names_are_refused_at_once_only_where_no_address_would_be_allowed(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as strict:
        for url in ("http://example.com/", "https://example.com:9000/"):
            with pytest.raises(UsageError, match=r"example\.com"):
                await strict.enqueue("mail", callback=url)
    async with Duly(valkey.url, namespace=namespace, callback_allow="10.0.0.0/8") as app:
        # Its address may be one of that network, and nobody has looked.
        await app.enqueue("mail", callback="http://intranet.example:9000/")
    async with Duly(valkey.url, namespace=namespace, callback_allow="10.0.0.0/8:9000, a.internal") as app:
        with pytest.raises(UsageError, match="https only"):
            await app.enqueue("mail", callback="http://intranet.example:9001/")
