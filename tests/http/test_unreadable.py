"""
What no worker could read is refused where it comes in, and nothing of it is stored.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from duly.codec import MAX_DEPTH
from duly.http.documents import new_job_of
from duly.job import JobState
from tests.http.conftest import problem

JOBS = "/v1/topics/mail/jobs"
JSON = {"content-type": "application/json"}


def nested(levels):
    return b"[" * levels + b"]" * levels


UNREADABLE = {
    "bytes that are no UTF-8": b'"\xff\xfe"',
    "half a surrogate pair": rb'"\ud800"',
    "a float that is too large": b"1e999",
    "5,000 digits": b"[" + b"9" * 5_000 + b"]",
    "too many levels": nested(MAX_DEPTH + 1),
    "far too many levels": nested(5_000),
}
of_each_kind = pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
READABLE = [nested(MAX_DEPTH), b'["%s"]' % (b"[" * 5_000), b"9" * 400, b"1e308", b'"\xc3\xa9"']


def refused(answer, field):
    """
    Check that a request is refused: 400 where it is no JSON, else 422 with the field.
    """
    if answer.status_code == 400:
        problem(answer, 400, "malformed")
    else:
        assert field == problem(answer, 422, "invalid")["field"].partition("[")[0].partition(".")[0]


async def stored(app):
    views = await app.views()
    return [job for state in JobState async for job in views.each(state)]


@of_each_kind
async def test_a_payload_that_no_worker_could_read_is_refused(client, app, value):
    refused(await client.post(JOBS, content=b'{"payload":%b}' % value, headers=JSON), "payload")
    assert [] == await stored(app)


@of_each_kind
async def test_a_context_that_no_worker_could_read_is_refused(client, app, value):
    refused(await client.post(JOBS, content=b'{"context":{"a":%b}}' % value, headers=JSON), "context")
    assert [] == await stored(app)


async def test_a_line_of_a_batch_is_refused_by_itself(client, app):
    lines = [b'{"payload":%b}' % value for value in (*UNREADABLE.values(), b'"fine"')]
    answer = await client.post(
        f"{JOBS}:batch", content=b"\n".join(lines), headers={"content-type": "application/x-ndjson"}
    )
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert ["refused"] * len(UNREADABLE) + ["created"] == [each["outcome"] for each in told]
    assert [b'"fine"'] == [job.payload for job in await stored(app)]


async def test_a_context_has_500_levels_like_any_value(client, app):
    body = b'{"id":"a","context":{"a":%b}}' % nested(MAX_DEPTH - 1)
    for headers in (JSON, JSON | {"idempotency-key": "k"}, JSON | {"idempotency-key": "k"}):
        answer = await client.post(JOBS, content=body, headers=headers)
        assert 202 == answer.status_code, answer.text
        assert {"a": json.loads(nested(MAX_DEPTH - 1))} == answer.json()["context"]
    assert ["a"] == [job.id for job in await stored(app)]


NDJSON = {"content-type": "application/x-ndjson"}


@pytest.mark.parametrize("key", [{}, {"idempotency-key": "k"}], ids=["without a key", "with a key"])
async def test_a_context_of_too_many_levels_refuses_its_own_line_only(client, app, key):
    lines = [b'{"id":"%d","context":{"a":%b}}' % (n, nested(n)) for n in (1, 330, 499, 500, 2)]
    answer = await client.post(f"{JOBS}:batch", content=b"\n".join(lines), headers=NDJSON | key)
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert ["created"] * 3 + ["refused", "created"] == [each["outcome"] for each in told]
    problem_ = told[3]["problem"]
    assert ("urn:duly:problem:invalid", "context") == (problem_["type"], problem_["field"])
    assert {"1", "330", "499", "2"} == {job.id for job in await stored(app)}


@pytest.mark.parametrize("kind", ["lines", "an array"])
async def test_whatever_a_line_raises_the_others_are_stored(client, app, monkeypatch, caplog, kind):
    def described(topic, wanted):
        if wanted.id == "b":
            raise RecursionError("too deep for this one")
        return new_job_of(topic, wanted)

    monkeypatch.setattr("duly.http.batch.new_job_of", described)
    items = [b'{"id":"%b"}' % id_ for id_ in (b"a", b"b", b"c")]
    if kind == "lines":
        answer = await client.post(f"{JOBS}:batch", content=b"\n".join(items), headers=NDJSON)
    else:
        answer = await client.post(f"{JOBS}:batch", content=b"[%b]" % b",".join(items), headers=JSON)
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert ["created", "refused", "created"] == [each["outcome"] for each in told]
    assert "urn:duly:problem:fault" == told[1]["problem"]["type"]
    assert told[1]["problem"]["reference"] in caplog.text
    assert "too deep for this one" in caplog.text
    assert {"a", "c"} == {job.id for job in await stored(app)}


@of_each_kind
async def test_a_result_that_nobody_could_read_is_refused_and_the_lease_stays(client, app, value):
    await client.post(JOBS, json={"id": "a"})
    claimed = await client.post("/v1/topics/mail/claim", json={"worker": "w"})
    [job] = claimed.json()["jobs"]
    ack = f"/v1/leases/{job['token']}/ack"
    refused(await client.post(ack, content=b'{"result":%b}' % value, headers=JSON), "result")
    assert 200 == (await client.post(ack, json={"result": 1})).status_code


@pytest.mark.parametrize("value", READABLE, ids=["levels", "brackets in a text", "digits", "float", "text"])
async def test_what_a_worker_can_read_runs(client, app, value):
    ran, stop = [], asyncio.Event()

    @app.handler("mail")
    async def mail(payload: object):
        ran.append(payload)
        stop.set()

    answer = await client.post(JOBS, content=b'{"payload":%b}' % value, headers=JSON)
    assert 202 == answer.status_code, answer.text
    assert json.loads(value) == answer.json()["payload"]
    async with asyncio.timeout(30):
        await app.work(stop=stop)
    assert [json.loads(value)] == ran
