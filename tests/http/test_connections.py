"""
Connections that send too much, too slowly or nothing, and those that read no answer: each has its bound.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import uvicorn
from starlette.responses import JSONResponse

from duly.http import async_endpoint, protocol, refusals
from duly.http.api import api
from duly.http.serve import listen
from duly.http.settings import ServiceSettings
from tests.eventually import eventually

JOBS = "/v1/topics/mail/jobs"
GET = f"GET {JOBS}/a HTTP/1.1\r\nhost: localhost\r\n".encode()
POST = f"POST {JOBS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
KIB = 1024


@asynccontextmanager
async def connected(url):
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_answer(reader):
    """
    One answer with a length: its status, headers and document.
    """
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode().splitlines()
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-1])}
    body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 30)
    return int(head[0].split()[1]), headers, json.loads(body)


async def refusal(reader, status, kind):
    said, headers, document = await read_answer(reader)
    assert (status, "application/problem+json", "close") == (
        said,
        headers["content-type"],
        headers["connection"],
    )
    assert f"urn:duly:problem:{kind}" == document["type"]
    return headers


def look(server, later_s, *, ending=False):
    """
    Let the service look at its connections as if so much time had gone by.
    """
    for connection in list(server.server_state.connections):
        connection.check(time.monotonic() + later_s, ending=ending)


def requests_under_way():
    return [task for task in asyncio.all_tasks() if "run_asgi" in repr(task)]


# -- bytes ------------------------------------------------------------------------------------------------


STARTS = [
    pytest.param(b"GET /", id="line"),
    pytest.param(GET + b"x: ", id="one"),
    pytest.param(GET + b"a: ", id="many"),
    pytest.param(b"", id="breaks"),
    pytest.param(GET + b"\r\n" + GET + b"x: ", id="pipelined"),
    pytest.param(CHUNKED + b"x: ", id="trailer"),
    pytest.param(CHUNKED.removesuffix(b"0\r\n") + b"2;x=", id="extension"),
]


@pytest.mark.parametrize("before", STARTS)
async def test_headers_are_counted_as_they_come_and_64_kib_of_them_are_a_431(url, before, request):
    piece = {"many": b"b\r\na: " * 1000, "breaks": b"\r\n" * 2000}.get(request.node.callspec.id, b"x" * 4000)
    async with connected(url) as (reader, writer):
        writer.write(before)
        sent = 0
        answered = asyncio.create_task(reader.readuntil(b"HTTP/1.1 431 "))
        while not answered.done():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0.001)
            assert sent < 10_000_000
        await answered
        # Sending and answering go on beside each other: what was on its way is counted here, too.
        assert 64 * KIB - len(before) <= sent
        assert b"urn:duly:problem:headers-too-large" in await asyncio.wait_for(reader.read(), 30)


class Wire(asyncio.Transport):
    """
    A transport without a socket: it keeps what is written.
    """

    def __init__(self):
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    abort = write_eof = close

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        raise AssertionError("it says nothing while it does not read")

    def resume_reading(self):
        pass


@asynccontextmanager
async def connection(**settings):
    """
    What a connection of the service is given and says, without a socket between.
    """
    over = asyncio.Event()

    async def application(_scope, _receive, _send):
        await over.wait()

    config = uvicorn.Config(application, log_config=None)
    limits, there = ServiceSettings(**settings), asyncio.all_tasks()
    config.load()
    wire = Wire()
    made = protocol.Protocol(config, uvicorn.server.ServerState(), {}, limits=limits)
    made.connection_made(wire)
    try:
        yield made, wire
    finally:
        made.connection_lost(None)
        over.set()
        await asyncio.gather(*asyncio.all_tasks() - there)


@pytest.mark.parametrize("size", [100, KIB, 5 * KIB])
@pytest.mark.parametrize("before", STARTS)
async def test_headers_are_refused_within_a_kib_after_64_of_them(before, size, request):
    kind = request.node.callspec.id.partition("-")[0]
    sent, flood = 0, {"many": b"b\r\na: ", "breaks": b"\r\n"}.get(kind, b"x") * 80 * KIB
    async with connection() as (made, wire):
        made.data_received(before)
        while b"HTTP/1.1 431 " not in wire.written and sent < 80 * KIB:
            made.data_received(flood[sent : sent + size])
            sent += size
            made._cork._flush()
        assert 64 * KIB - len(before) <= sent <= 64 * KIB + max(size, KIB)
        assert b"urn:duly:problem:headers-too-large" in wire.written


def test_the_limit_of_headers_is_64_kib_unless_it_is_said():
    assert 65_536 == ServiceSettings().header_limit


async def test_headers_of_60_kib_are_read(url):
    async with connected(url) as (reader, writer):
        for _ in range(2):
            writer.write(GET + b"x: " + b"x" * 60 * KIB + b"\r\n\r\n")
            assert 404 == (await read_answer(reader))[0]


async def test_a_bad_request_is_a_problem_too(url):
    async with connected(url) as (reader, writer):
        writer.write(b"\x16\x03\x01 this is TLS, or anything\r\n\r\n")
        await refusal(reader, 400, "malformed")


# -- time -------------------------------------------------------------------------------------------------


async def test_half_a_head_and_half_a_body_are_a_408_when_their_time_is_over(served):
    async with served(header_timeout_s=0.3, body_timeout_s=0.3) as (url, _):
        for half in (GET, POST + b"content-length: 9\r\n\r\n{", GET + b"\r\n" + GET):
            async with connected(url) as (reader, writer):
                writer.write(half)
                if half.count(b"GET") == 2:
                    assert 404 == (await read_answer(reader))[0]
                await refusal(reader, 408, "timeout")
        await eventually(lambda: requests_under_way() == [])


async def test_a_connection_that_says_nothing_is_closed(served):
    async with served(header_timeout_s=0.3) as (url, _), connected(url) as (reader, _):
        assert b"" == await asyncio.wait_for(reader.read(), 30)


async def test_a_body_may_take_long_as_long_as_it_comes(served):
    async with served(body_rate=1) as (url, server), connected(url) as (reader, writer):
        writer.write(POST + b"content-length: 102\r\nexpect: 100-continue\r\n\r\n{")
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        [connection] = server.server_state.connections
        for _ in range(5):
            connection._body_until_s -= 20  # so much time goes by
            heard_s = connection._heard_s
            writer.write(b" " * 20)
            await eventually(lambda: connection._heard_s > heard_s)  # noqa: B023  # awaited here
            look(server, 25)
        writer.write(b"}")
        assert 202 == (await read_answer(reader))[0]


async def test_a_body_that_comes_byte_by_byte_is_a_408(served):
    async with served(body_timeout_s=0.5) as (url, _), connected(url) as (reader, writer):
        writer.write(POST + b"content-length: 200\r\n\r\n")
        answered = asyncio.create_task(refusal(reader, 408, "timeout"))
        for _ in range(200):
            if answered.done():
                break
            writer.write(b" ")
            await asyncio.sleep(0.02)
        await answered


async def test_what_came_quickly_buys_no_time_for_what_comes_slowly(served):
    async with served(body_rate=1) as (url, server), connected(url) as (reader, writer):
        writer.write(POST + b"content-length: 2000\r\nexpect: 100-continue\r\n\r\n{")
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        [connection] = server.server_state.connections
        heard_s = connection._heard_s
        writer.write(b" " * 1_000)
        await eventually(lambda: connection._heard_s > heard_s)
        connection._body_until_s -= 20
        heard_s = connection._heard_s
        writer.write(b" ")
        await eventually(lambda: connection._heard_s > heard_s)
        look(server, 9)
        assert not connection._cork.is_closing()
        look(server, 12)
        await refusal(reader, 408, "timeout")


async def test_a_connection_that_is_kept_is_closed_when_it_was_idle_for_too_long(served):
    async with served() as (url, server), connected(url) as (reader, writer):
        writer.write(GET + b"\r\n")
        assert 404 == (await read_answer(reader))[0]
        look(server, 70)
        writer.write(GET + b"\r\n")
        assert 404 == (await read_answer(reader))[0]
        look(server, 80)
        assert b"" == await asyncio.wait_for(reader.read(), 30)


async def test_one_that_waits_for_its_answer_is_left_alone(served, app):
    await app.enqueue("mail", None, id="a", delay=60)
    async with served() as (url, server), connected(url) as (reader, writer):
        writer.write(GET.replace(b"/a", b"/a?wait=60") + b"\r\n")
        await eventually(lambda: requests_under_way() != [])
        look(server, 10_000)
        await app.job("mail", "a").cancel()
        assert (200, "cancelled") == ((answer := await read_answer(reader))[0], answer[2]["state"])


async def test_one_that_does_not_take_its_answer_is_cut_off(served, app, monkeypatch):
    monkeypatch.setattr(protocol, "_unacknowledged", lambda _: 0)  # as where the kernel does not say it
    await app.enqueue("mail", "x" * 250_000, id="a", delay=60)
    async with served() as (url, server):
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall((GET + b"\r\n") * 100)
            await eventually(
                lambda: any(each._cork.get_write_buffer_size() for each in server.server_state.connections)
            )
            look(server, 0)
            look(server, 20)
            assert 1 == len(server.server_state.connections)
            look(server, 40)
            await eventually(lambda: not server.server_state.connections)
            await eventually(lambda: requests_under_way() == [])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say what is acknowledged")
async def test_one_that_takes_its_answer_slowly_but_steadily_gets_on_and_is_cut_off_when_it_stops():
    async def application(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 8_000_000})

    config = uvicorn.Config(application, log_config=None)
    config.load()
    made = protocol.Protocol(config, uvicorn.server.ServerState(), {}, limits=ServiceSettings())
    loop, there = asyncio.get_running_loop(), asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
        client.connect(listener.getsockname())
        client.setblocking(False)
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KIB * KIB)
        transport, _ = await loop.connect_accepted_socket(lambda: made, accepted)
        await loop.sock_sendall(client, GET + b"\r\n")
        await eventually(lambda: transport.get_write_buffer_size() > 0)
        unsent, now_s = transport.get_write_buffer_size(), time.monotonic()
        made.check(now_s)
        for _ in range(5):
            waiting = protocol._unacknowledged(transport)
            while protocol._unacknowledged(transport) >= waiting:
                assert b"" != await asyncio.wait_for(loop.sock_recv(client, 4 * KIB), 30)
            now_s += 25
            made.check(now_s)
            assert not transport.is_closing()
        assert unsent == transport.get_write_buffer_size(), "the kernel has made no room in that time"

        def stopped():
            nonlocal now_s
            now_s += 31  # what was on its way may be acknowledged in between
            made.check(now_s)
            return transport.is_closing()

        await eventually(stopped)
        await asyncio.gather(*asyncio.all_tasks() - there)


# -- how many ---------------------------------------------------------------------------------------------


async def test_a_connection_too_many_is_a_503_and_room_comes_back(served):
    async with served(max_connections=2) as (url, server):
        async with connected(url) as (first, to_first), connected(url):
            await eventually(lambda: 2 == len(server.server_state.connections))
            async with connected(url) as (reader, writer):
                writer.write(GET + b"\r\n")
                assert "1" == (await refusal(reader, 503, "busy"))["retry-after"]
            to_first.write(GET + b"\r\n")
            assert 404 == (await read_answer(first))[0]
        await eventually(lambda: not server.server_state.connections)
        async with connected(url) as (reader, writer):
            writer.write(GET + b"\r\n")
            assert 404 == (await read_answer(reader))[0]


async def test_connections_far_too_many_are_not_kept(served):
    async with served(max_connections=1) as (url, server):
        there = [socket.create_connection(("127.0.0.1", httpx.URL(url).port)) for _ in range(30)]
        try:
            await eventually(lambda: 1 <= len(server.server_state.connections) <= 11)
            await eventually(lambda: 1 == len(server.server_state.connections))
        finally:
            for each in there:
                each.close()


# -- clients that have gone -------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [b"", GET + b"\r\n"], ids=["alone", "with another behind it"])
async def test_a_long_poll_ends_when_its_client_has_gone(served, app, behind):
    await app.enqueue("mail", None, id="a", delay=60)
    async with served() as (url, server), connected(url) as (_, writer):
        writer.write(GET.replace(b"/a", b"/a?wait=60") + b"\r\n")
        await eventually(lambda: requests_under_way() != [])
        waiters = await app.waiters()
        await eventually(lambda: {} != waiters._waiting)
        writer.write(behind)
        if behind:
            await eventually(lambda: any(each.pipeline for each in server.server_state.connections))
            # While a request waits behind another, the service does not read, and notices when it writes.
            [connection] = server.server_state.connections
            connection._cork.abort()
        writer.transport.abort()
        await eventually(lambda: {} == waiters._waiting)
        await eventually(lambda: requests_under_way() == [])


# -- refusals of what is still sent -----------------------------------------------------------------------


def send(url, data, headers):
    """
    Send with urllib, which closes its connection and reads only when it has sent everything.
    """
    request = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310  # ours
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)  # noqa: S310  # ours
    with caught.value:
        return caught.value.code, json.loads(caught.value.read())["status"]


LARGE = b'"' + b"x" * 5_000_000 + b'"'


@pytest.mark.parametrize(
    ("status", "path", "kind"),
    [
        (413, JOBS, "application/json"),
        (415, f"{JOBS}:batch", "text/csv"),
        (404, "/v1/nothing", "application/json"),
        (405, "/healthz", "application/json"),
        (401, JOBS, "application/json"),
    ],
)
async def test_a_client_that_sends_all_before_it_reads_sees_why_it_was_refused(
    served, app, status, path, kind
):
    if status == 401:
        await (await app.key_ring()).create("ops", ["admin"])
    async with served() as (url, server):
        for _ in range(15):
            assert (status, status) == await asyncio.to_thread(
                send, url + path, LARGE, {"Content-Type": kind}
            )
        await eventually(lambda: not server.server_state.connections)


@asynccontextmanager
async def plainly(application):
    """
    Serve with uvicorn as it comes.
    """
    place = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, log_config=None))
    serving = asyncio.create_task(server.serve([place]))
    await eventually(lambda: server.started, 30)
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}", server
    finally:
        server.should_exit = True
        await serving


@pytest.mark.parametrize(
    ("status", "path", "kind"),
    [
        (413, JOBS, "application/json"),
        (415, f"{JOBS}:batch", "text/csv"),
        (404, "/v1/nothing", "application/json"),
        (401, JOBS, "application/json"),
        (413, "/own", "application/json"),
        (413, "/hooked", "application/json"),
    ],
)
async def test_in_another_server_it_sees_that_as_well(app, status, path, kind):
    application = api(app)

    async def own(_request, problem):
        return JSONResponse(problem.document(), problem.status)

    async_endpoint("/own", "mail", to=application, queue=app)
    async_endpoint("/hooked", "mail", to=application, queue=app, error=own)
    if status == 401:
        await (await app.key_ring()).create("ops", ["admin"])
    async with plainly(application) as (url, _):
        for _ in range(15):
            assert (status, status) == await asyncio.to_thread(
                send, url + path, LARGE, {"Content-Type": kind}
            )


async def test_in_another_server_a_refused_body_is_read_within_bounds(app, monkeypatch):
    async with plainly(api(app)) as (url, server):
        for bound, value in (("UNREAD_LIMIT", 100_000), ("QUIET_S", 0.1), ("UNREAD_S", 0.1)):
            with monkeypatch.context() as patch:
                patch.setattr(refusals, bound, value)
                async with connected(url) as (reader, writer):
                    writer.write(POST + b"connection: close\r\ncontent-length: 2000000000\r\n\r\n")
                    assert 413 == (await read_answer(reader))[0], "at once"
                    with suppress(ConnectionError):
                        while bound != "QUIET_S" and not reader.at_eof():
                            writer.write(b"x" * 10_000)
                            await writer.drain()
                            await asyncio.sleep(0.001)
                    await eventually(lambda: not server.server_state.connections)


async def test_in_another_server_nobody_waits_for_a_body_that_was_read(app):
    async with plainly(api(app)) as (url, _), connected(url) as (reader, writer):
        for body in (b"{", b"[]"):  # no JSON, and not what is asked for
            writer.write(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
            assert (await read_answer(reader))[0] in (400, 422)
        await eventually(lambda: requests_under_way() == [], refusals.QUIET_S / 2)


async def test_a_kept_connection_serves_on_after_a_refused_body(served):
    async with served() as (url, _), connected(url) as (reader, writer):
        writer.write(POST + b"content-length: %d\r\n\r\n" % len(LARGE))
        assert 413 == (await read_answer(reader))[0]
        writer.write(LARGE + GET + b"\r\n")
        assert 404 == (await read_answer(reader))[0]


@pytest.mark.parametrize("head", [b"", b"connection: close\r\n"], ids=["kept", "closed"])
async def test_of_a_refused_body_no_more_is_read_than_its_bound_of_bytes_and_time(served, head, monkeypatch):
    monkeypatch.setattr(protocol, "UNREAD_LIMIT", 100_000)
    async with served() as (url, server):
        for too_much in (True, False):
            async with connected(url) as (reader, writer):
                writer.write(POST + head + b"content-length: 2000000000\r\n\r\n")
                assert 413 == (await read_answer(reader))[0]
                if too_much:
                    with pytest.raises(ConnectionError):
                        while True:
                            writer.write(b"x" * 10_000)
                            await writer.drain()
                else:
                    writer.write(b"x")
                    look(server, 10)
                await eventually(lambda: not server.server_state.connections)


@pytest.mark.parametrize(
    ("still_s", "kept_s", "over_s"), [(1, 0.5, 1), (600, 1.5, 2)], ids=["quiet", "sends on"]
)
@pytest.mark.parametrize("head", [b"", b"connection: close\r\n"], ids=["kept", "closed"])
async def test_once_the_service_ends_a_refused_body_is_read_two_seconds_and_one_if_nothing_comes(
    served, head, still_s, kept_s, over_s, monkeypatch
):
    monkeypatch.setattr(protocol, "STALLED_S", still_s)
    async with served() as (url, server), connected(url) as (reader, writer):
        writer.write(POST + head + b"content-length: 2000000000\r\n\r\n")
        assert 413 == (await read_answer(reader))[0]
        look(server, kept_s, ending=True)
        assert 1 == len(server.server_state.connections)
        writer.write(b"x")
        look(server, over_s, ending=True)
        await eventually(lambda: not server.server_state.connections)
