"""
Callbacks over HTTP: what a request may ask for, and what is refused.
"""

from __future__ import annotations

import pytest

from duly.job import JobKey
from tests.http.conftest import problem


async def test_a_job_may_name_a_callback(client, app):
    url = "https://example.com/hook"
    response = await client.post("/v1/topics/mail/jobs", json={"id": "a", "payload": 1, "callback": url})
    assert 202 == response.status_code
    assert url == (await (await app.views()).get(JobKey("mail", "a"))).envelope.callback
    # It may hold a secret of the receiver, so whoever reads the job is not told.
    assert url not in response.text


@pytest.mark.parametrize("url", ["ftp://example.com/", "https://a:hunter2@example.com/", "", "hook"])
async def test_a_callback_that_is_no_url_is_refused(client, url):
    response = await client.post("/v1/topics/mail/jobs", json={"payload": 1, "callback": url})
    document = problem(response, 422, "invalid")
    assert "callback" in document["detail"]
    assert "hunter2" not in response.text


async def test_a_batch_may_name_callbacks(client):
    lines = b'{"callback":"https://example.com/"}\n{"callback":"no url"}\n'
    response = await client.post(
        "/v1/topics/mail/jobs:batch", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    assert ['"created"', '"refused"'] == [
        line.partition('"outcome":')[2].partition(",")[0] for line in response.text.splitlines()
    ]
