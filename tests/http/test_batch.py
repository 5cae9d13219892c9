"""
Batches: an outcome for every line, as they come, and never all of them in memory.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import http.client
import json
import random
import socket
import urllib.request
from datetime import datetime

import httpx
import pytest
import requests

from duly import Duly, OutcomeUnknown, StoreUnavailable
from duly.http import spool
from duly.http.batch import LOST, SLICE
from duly.http.spool import Spools
from duly.job import JobState
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.http.test_connections import look, requests_under_way
from tests.proxy import Proxy

BATCH = "/v1/topics/mail/jobs:batch"
NDJSON = {"content-type": "application/x-ndjson"}
HEAD = (
    f"POST {BATCH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
    "transfer-encoding: chunked\r\n\r\n"
).encode()


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


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


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_compressed_batch_is_a_415(client, app, kind):
    headers = {"content-type": kind, "content-encoding": "gzip"}
    response = await client.post(BATCH, content=gzip.compress(b"[{}]"), headers=headers)
    problem(response, 415, "unsupported")
    assert "identity" == response.headers["accept-encoding"]
    assert 0 == await count(app)


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
        "host: localhost",
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


async def test_each_line_is_stored_and_answered_while_the_next_is_not_sent_yet(url, app):
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    writer.write(HEAD)
    for number in range(1, 4):
        writer.write(chunk(b'{"id":"%d"}\n' % number))
        await asyncio.wait_for(reader.readuntil(b'{"line":%d,"outcome":"created"' % number), 30)
        assert number == await count(app)
    writer.write(chunk(b""))
    await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 30)
    writer.close()


async def test_a_batch_whose_server_goes_away_says_how_many_lines_were_stored(served, app, valkey, namespace):
    proxy = Proxy(valkey.socket)
    lost = Duly(proxy.url, namespace=namespace, socket_timeout=0.2)
    try:
        async with served(lost) as (url, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
            writer.write(HEAD)
            writer.write(chunk(b'{"id":"first"}\n'))
            await asyncio.wait_for(reader.readuntil(b'"outcome":"created"'), 30)
            proxy.cut("before", times=1_000_000)
            writer.write(chunk(b'{"id":"second"}\n{"id":"third"}\n') + chunk(b""))
            said = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 30)
            for line, outcome in ((2, b"unknown"), (3, b"unknown"), (4, b"stopped")):
                assert b'{"line":%d,"outcome":"%b"' % (line, outcome) in said
            assert 3 == said.count(b'"problem":{"type":"urn:duly:problem:outcome-unknown"')
            assert b'"stored":1,"unknown":2}' in said
            proxy.mend()
            writer.close()
    finally:
        proxy.close()


ARRAY = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("error", "kind"), [(StoreUnavailable("away"), "unavailable"), (RuntimeError("a bug"), "fault")]
)
@pytest.mark.parametrize("media", [ARRAY, NDJSON])
async def test_a_batch_that_fails_after_its_first_slice_says_how_many_lines_were_stored(
    client, app, monkeypatch, caplog, media, error, kind
):
    monkeypatch.setattr("duly.http.batch.SLICE", 2)
    send, calls = app.enqueue_many, []

    async def fail_at_the_second(jobs):
        calls.append(jobs)
        if len(calls) > 1:
            raise error
        return await send(jobs)

    monkeypatch.setattr(app, "enqueue_many", fail_at_the_second)
    jobs = [{"id": f"{number}"} for number in range(5)]
    body = json.dumps(jobs) if media is ARRAY else "".join(json.dumps(job) + "\n" for job in jobs)
    response = await client.post(BATCH, content=body, headers=media)
    *told, last = [json.loads(line) for line in response.text.splitlines()]
    assert ["created", "created"] == [each["outcome"] for each in told]
    assert (3, "stopped", 2, f"urn:duly:problem:{kind}") == (
        *(last["line"], last["outcome"], last["stored"], last["problem"]["type"]),
    )
    faults = [each for each in caplog.records if each.levelname == "ERROR"]
    assert (kind == "fault") == bool(faults), "an outage is none"
    assert 2 == await count(app)


def in_form(media, jobs):
    return json.dumps(jobs) if media is ARRAY else "".join(json.dumps(job) + "\n" for job in jobs)


@pytest.mark.parametrize("media", [ARRAY, NDJSON])
async def test_a_line_whose_answer_was_lost_is_unknown_and_counted_as_neither_stored_nor_refused(
    client, app, monkeypatch, media
):
    monkeypatch.setattr("duly.http.batch.SLICE", 3)
    send, calls = app.enqueue_many, []

    async def lose_the_second(jobs):
        calls.append(jobs)
        if len(calls) > 1:
            raise StoreUnavailable("away")
        first, _, *rest = await send(jobs)
        return [first, OutcomeUnknown("its name is none of the client's business"), *rest]

    monkeypatch.setattr(app, "enqueue_many", lose_the_second)
    body = in_form(media, [{"id": "a"}, {"id": "b"}, {"dely": 1}, {"id": "c"}])
    told = lines_of(await client.post(BATCH, content=body, headers=media))
    assert ["created", "unknown", "refused", "stopped"] == [each["outcome"] for each in told]
    assert ("b", "urn:duly:problem:outcome-unknown", LOST) == (
        *(told[1]["id"], told[1]["problem"]["type"], told[1]["problem"]["detail"]),
    )
    assert (4, 1, 1) == (told[3]["line"], told[3]["stored"], told[3]["unknown"])


@pytest.mark.parametrize("media", [ARRAY, NDJSON])
async def test_where_no_line_of_a_slice_was_answered_for_each_is_unknown_and_the_batch_stops(
    client, app, monkeypatch, media
):
    monkeypatch.setattr("duly.http.batch.SLICE", 2)
    send, calls = app.enqueue_many, []

    async def lose_the_second(jobs):
        calls.append(jobs)
        answers = await send(jobs)
        if len(calls) > 1:
            raise OutcomeUnknown("lost")
        return answers

    monkeypatch.setattr(app, "enqueue_many", lose_the_second)
    jobs = [{"id": "a"}, {"dely": 1}, {"id": "b"}, {"id": "c"}, {"id": "d"}, {"id": "e"}]
    told = lines_of(await client.post(BATCH, content=in_form(media, jobs), headers=media))
    assert ["created", "refused", "unknown", "unknown", "stopped"] == [each["outcome"] for each in told]
    last = told[-1]
    assert (5, 1, 2, "urn:duly:problem:outcome-unknown") == (
        *(last["line"], last["stored"], last["unknown"], last["problem"]["type"]),
    )
    assert (2, 3) == (len(calls), await count(app))
    calls.append("the first slice of another batch")
    answer = await client.post(BATCH, content=in_form(media, jobs), headers=media)
    problem(answer, 503, "outcome-unknown")


async def test_a_batch_whose_end_cannot_be_noted_says_so_in_its_last_line(client, monkeypatch):
    async def fail(*_):
        raise StoreUnavailable("away")

    monkeypatch.setattr("duly.http.keyedbatch.KeyedBatch.end", fail)
    for media, body in ((ARRAY, "[{}]"), (NDJSON, "{}")):
        headers = media | {"Idempotency-Key": f"a key of {len(body)}"}
        response = await client.post(BATCH, content=body, headers=headers)
        outcomes = [json.loads(line)["outcome"] for line in response.text.splitlines()]
        assert ["created", "stopped"] == outcomes


@pytest.mark.parametrize(
    ("sent", "size", "stored"),
    [
        pytest.param(b'{"id":"a"}\n{"id":"b"}\n{"id":"c"', 100, ["a", "b"], id="more was promised"),
        pytest.param(b'{"id":"a"}\n{"id":"b"}', 21, ["a", "b"], id="whole"),
    ],
)
async def test_lines_that_came_are_stored_also_if_their_client_went_at_once(url, app, sent, size, stored):
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
        head = f"POST {BATCH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
        client.sendall(f"{head}content-length: {size}\r\n\r\n".encode() + sent)
        client.shutdown(socket.SHUT_WR)  # both are there before the service has its turn

        async def names():
            return [job.id async for job in (await app.views()).each(JobState.ready)]

        async def all_there():
            return stored == sorted(await names())

        await eventually(all_there)
        await eventually(lambda: requests_under_way() == [])
        assert stored == sorted(await names())


class Narrow(http.client.HTTPConnection):
    """
    A connection that holds little of an answer that nobody reads yet.
    """

    def connect(self):
        super().connect()
        self.sock.setsockopt(*NARROW)


class NarrowHandler(urllib.request.HTTPHandler):
    def http_open(self, request):
        return self.do_open(Narrow, request)


class NarrowAdapter(requests.adapters.HTTPAdapter):
    def init_poolmanager(self, *args, **named):
        super().init_poolmanager(*args, **named, socket_options=[NARROW])


NARROW = (socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)


def by_http_client(url, body):
    connection = Narrow("127.0.0.1", httpx.URL(url).port, timeout=60)
    try:
        connection.request("POST", BATCH, body, NDJSON)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def by_urllib(url, body):
    opener = urllib.request.build_opener(NarrowHandler, urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url + BATCH, body, NDJSON)  # noqa: S310  # ours
    with opener.open(request, timeout=60) as response:
        return response.status, response.read()


def by_httpx(url, body):
    transport = httpx.HTTPTransport(socket_options=[NARROW])
    with httpx.Client(transport=transport, trust_env=False, timeout=60) as client:
        response = client.post(url + BATCH, content=body, headers=NDJSON)
    return response.status_code, response.content


def by_requests(url, body):
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", NarrowAdapter())
        response = session.post(url + BATCH, body, headers=NDJSON, timeout=60)
    return response.status_code, response.content


def send_all_then_read(url, lines, send=by_http_client):
    """
    Send a batch as many clients do: nothing is read before everything was sent.
    """
    status, answer = send(url, b"".join(lines))
    assert 202 == status
    return [json.loads(line) for line in answer.splitlines()]


def lines_with_few_jobs(total, every):
    """
    Lines of which only some are jobs: the answers to the others cost the server nothing.

    Lines and answers together are more than sockets hold.
    """
    wrong = b'{"dely":"%b"}\n' % (b"x" * 400)
    for number in range(1, total + 1):
        yield b'{"id":"%d","delay":60}\n' % number if number % every == 0 else wrong


@pytest.mark.parametrize("send", [by_http_client, by_urllib, by_httpx, by_requests])
async def test_a_client_may_send_everything_before_it_reads_any_answer(served, app, send):
    async with served() as (url, server):
        told = await asyncio.to_thread(send_all_then_read, url, lines_with_few_jobs(40_000, 1000), send)
        assert list(range(1, 40_001)) == [each["line"] for each in told]
        assert 40 == sum(each["outcome"] == "created" for each in told) == await count(app)
        service = server.config.loaded_app.state.service
        assert 0 == service.spools.size


async def test_beyond_the_size_of_the_spool_nothing_is_stored_and_the_last_line_says_so(served, app):
    async with served(spool_limit=300_000) as (url, _):
        told = await asyncio.to_thread(send_all_then_read, url, lines_with_few_jobs(40_000, 100))
        *answered, last = told
        assert list(range(1, last["line"] + 1)) == [each["line"] for each in told]
        assert ("stopped", "urn:duly:problem:too-large") == (last["outcome"], last["problem"]["type"])
        assert 40_000 > len(answered) > 2 * SLICE
        created = sum(each["outcome"] == "created" for each in answered)
        assert created == last["stored"] == await count(app) == len(answered) // 100


async def test_with_a_full_disk_the_batch_stops_and_its_last_line_says_how_many_lines_were_stored(
    served, app, monkeypatch, caplog
):
    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool.os, "pwrite", write)
    monkeypatch.setattr(spool, "MEMORY", 10_000)
    async with served() as (url, server):
        told = await asyncio.to_thread(send_all_then_read, url, lines_with_few_jobs(40_000, 100))
        *answered, last = told
        assert list(range(1, last["line"] + 1)) == [each["line"] for each in told]
        assert ("stopped", "urn:duly:problem:too-large") == (last["outcome"], last["problem"]["type"])
        created = sum(each["outcome"] == "created" for each in answered)
        assert 0 < created == last["stored"] == await count(app)
        assert 0 == server.config.loaded_app.state.service.spools.size
    [said] = [each.getMessage() for each in caplog.records if "no more can be spooled" in each.getMessage()]
    assert "No space left on device" in said


@pytest.mark.parametrize("how", ["nothing comes", "too little comes"])
async def test_a_batch_whose_body_comes_too_slowly_ends_with_a_line_that_says_so(served, app, how):
    async with served() as (url, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        writer.write(HEAD + chunk(b'{"id":"a"}\n') + chunk(b"half a line"))
        await asyncio.wait_for(reader.readuntil(b'"outcome":"created"'), 30)
        if how == "too little comes":
            [connection] = server.server_state.connections
            connection._body_until_s = 0.0
        look(server, 0 if how == "too little comes" else 31)
        said = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 30)
        assert b'{"line":2,"outcome":"stopped","problem":{"type":"urn:duly:problem:timeout"' in said
        assert b'"stored":1,"unknown":0}' in said
        assert 1 == await count(app)
        writer.close()


async def test_a_client_that_sends_no_more_after_its_batch_was_stopped_gets_the_last_line(
    served, app, monkeypatch
):
    send, calls = app.enqueue_many, []

    async def fail_at_the_second(jobs):
        calls.append(jobs)
        if len(calls) > 1:
            raise StoreUnavailable("away")
        return await send(jobs)

    monkeypatch.setattr(app, "enqueue_many", fail_at_the_second)
    async with served() as (url, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        writer.write(HEAD + chunk(b'{"id":"a"}\n'))
        await asyncio.wait_for(reader.readuntil(b'"outcome":"created"'), 30)
        writer.write(chunk(b'{"id":"b"}\n'))
        await eventually(lambda: 2 == len(calls), 30)
        look(server, 31)
        said = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 30)
        assert b'"outcome":"stopped","problem":{"type":"urn:duly:problem:unavailable"' in said
        assert b'"stored":1,"unknown":0}' in said
        writer.close()


async def test_what_is_taken_from_a_spool_is_what_was_put_in_also_through_its_file(monkeypatch):
    monkeypatch.setattr(spool, "MEMORY", 1000)
    monkeypatch.setattr(spool, "PIECE", 700)
    chance, spools = random.Random(7), Spools(10_000_000)
    for _ in range(20):
        opened = spools.open(1_000_000)
        put = [chance.randbytes(chance.randrange(1, 900)) for _ in range(200)]

        async def fill(opened=opened, put=put):
            for data in put:
                await opened.put(data)
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
            opened.end(b"last")

        filling = asyncio.create_task(fill())
        if chance.random() < 0.5:
            await filling  # nobody has read: most of it is in the file
            assert opened.size == spools.size == sum(map(len, put)) + 4
        taken = b"".join([part async for part in opened.parts()])
        await filling
        assert b"".join(put) + b"last" == taken
        opened.close()
        assert 0 == spools.size
    spools.close()


async def test_a_spool_that_is_full_says_so_alone_or_with_others():
    spools = Spools(1000)
    first, second = spools.open(600), spools.open(600)
    await first.put(b"x" * 600)
    assert (True, False) == (first.full, second.full)
    await second.put(b"x" * 400)
    assert (True, True) == (first.full, second.full)
    first.close()
    assert not second.full
    second.close()
    spools.close()
