"""
Batches: an outcome for every line, as they come, and never all of them in memory.
"""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import httpx
import pytest

from duly.http.batch import SLICE
from duly.job import JobState
from tests.http.conftest import problem

BATCH = "/v1/topics/mail/jobs:batch"
NDJSON = {"content-type": "application/x-ndjson"}


def lines_of(response):
    assert 202 == response.status_code, response.text
    return [json.loads(line) for line in response.text.splitlines()]


async def count(app):
    stats = await (await app.views()).stats()
    return sum(sum(topic.counts.values()) for topic in stats.topics)


async def test_every_line_has_an_outcome_and_a_wrong_one_stops_nobody(client, app):
    body = (
        b'{"id":"a","payload":1}\n{"id":"b","delay":"soon"}\n\n{"id":"a"}\nnot json\r\n{"id":"c","delay":5}'
    )
    told = lines_of(await client.post(BATCH, content=body, headers=NDJSON))
    assert [
        (1, "a", "created"),
        (2, None, "refused"),
        (4, "a", "kept"),
        (5, None, "refused"),
        (6, "c", "created"),
    ] == [(each["line"], each.get("id"), each["outcome"]) for each in told]
    assert "urn:duly:problem:invalid" == told[1]["problem"]["type"]
    assert "urn:duly:problem:malformed" == told[3]["problem"]["type"]
    assert ("scheduled", 1) == (told[4]["state"], (await app.job("mail", "a").get()).revision > 0)


async def test_an_array_is_a_batch_too(client):
    told = lines_of(await client.post(BATCH, json=[{"id": "a"}, {"dely": 1}, 7]))
    assert ["created", "refused", "refused"] == [each["outcome"] for each in told]
    assert [1, 2, 3] == [each["line"] for each in told]
    assert "dely" == told[1]["problem"]["field"]


async def test_an_empty_batch_has_no_outcomes(client):
    assert [] == lines_of(await client.post(BATCH, content=b"", headers=NDJSON))
    assert [] == lines_of(await client.post(BATCH, json=[]))


@pytest.mark.parametrize("body", [b"{}", b"[", b"null"])
async def test_what_is_no_array_is_refused_as_a_whole(client, app, body):
    response = await client.post(BATCH, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert 0 == await count(app)


async def test_another_media_type_is_a_415(client):
    response = await client.post(BATCH, content=b"a,b", headers={"content-type": "text/csv"})
    problem(response, 415, "unsupported")


async def test_a_line_that_is_too_long_is_dropped_and_the_next_is_read(serving, app):
    async with serving(body_limit=1000) as client:
        long = b'{"payload":"' + b"x" * 5000 + b'"}\n'

        async def drip():
            body = b'{"id":"a"}\n' + long + b'{"id":"b"}\n' + long
            for at in range(0, len(body), 300):
                yield body[at : at + 300]

        told = lines_of(await client.post(BATCH, content=drip(), headers=NDJSON))
        assert ["created", "refused", "created", "refused"] == [each["outcome"] for each in told]
        assert "urn:duly:problem:too-large" == told[1]["problem"]["type"]
        assert [1, 2, 3, 4] == [each["line"] for each in told]
        assert 2 == await count(app)


async def test_answers_come_while_lines_are_still_sent(url, app):
    """
    The client sends its second part only after it has read the answers to the first.
    """
    first = "".join(f'{{"id":"{number}"}}\n' for number in range(SLICE))
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port, limit=10_000_000)
    head = [
        f"POST {BATCH} HTTP/1.1",
        "host: x",
        "content-type: application/x-ndjson",
        "transfer-encoding: chunked",
    ]
    writer.write("\r\n".join([*head, "", f"{len(first):x}", first, ""]).encode())
    answered = await reader.readuntil(f'"line":{SLICE},'.encode())
    assert b"HTTP/1.1 202" in answered
    assert SLICE == await count(app)
    last = b'{"id":"last"}\n'
    writer.write(f"{len(last):x}\r\n".encode() + last + b"\r\n0\r\n\r\n")
    await reader.readuntil(b'"id":"last"')
    writer.close()


async def test_sending_a_batch_again_changes_nothing(client, app):
    body = "".join(f'{{"id":"{number}","delay":60}}\n' for number in range(3 * SLICE))
    for outcome in ("created", "kept"):
        told = lines_of(await client.post(BATCH, content=body, headers=NDJSON))
        assert {outcome} == {each["outcome"] for each in told}
        assert 3 * SLICE == len(told)
    stats = await (await app.views()).stats()
    assert 3 * SLICE == stats.topics[0].counts[JobState.scheduled.name]


async def test_a_line_says_when_its_job_is_due(client, app):
    body = b'{"id":"a","delay":60}\n{"id":"a"}\n{"id":"b","delay":-1}\n'
    told = lines_of(await client.post(BATCH, content=body, headers=NDJSON))
    due_at = (await app.job("mail", "a").get()).due_at
    assert [due_at, due_at] == [datetime.fromisoformat(line["due_at"]) for line in told[:2]]
    assert "due_at" not in told[2]
