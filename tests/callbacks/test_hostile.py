"""
Receivers that mean harm, or are broken: refused or bounded, and no other host waits for them.
"""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from duly import Retry, Snooze
from duly.callbacks import post
from duly.callbacks.breaker import Hosts
from duly.callbacks.lookups import Lookups
from tests.callbacks.conftest import delivery
from tests.callbacks.receivers import answering, receiving, saying

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LONG_S = 100.0  #: no test waits for it


async def give_up(deliverer, url, match):
    with pytest.raises(Retry, match=match) as caught:
        await asyncio.wait_for(deliverer.deliver(url, delivery()), LONG_S)
    return caught.value


# -- redirects --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["301 X", "302 X", "303 X", "307 X", "308 X"])
async def test_a_redirect_is_not_followed(deliverer, status):
    async with (
        receiving(answering()) as inner,
        receiving(answering(status, location=inner.url())) as outer,
    ):
        # Even where it leads to is allowed.
        sender = deliverer(f"{outer.allow},{inner.allow}")
        await give_up(sender, outer.url(), status[:3])
    assert (1, 0) == (len(outer.requests), inner.connections)


# -- time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(saying(again=b"", pause_s=0), id="closes without a word"),
        pytest.param(saying(b"HTTP/1.1 200 OK\r\nX: ", again=b"y", pause_s=0.05), id="drips a header"),
        pytest.param(saying(again=b"H", pause_s=0.05), id="drips a status"),
        pytest.param(saying(again=b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.05), id="drips hints"),
    ],
)
async def test_an_answer_that_never_begins_is_no_answer(deliverer, behaviour):
    async with receiving(behaviour) as receiver:
        await give_up(deliverer(receiver.allow, total_s=0.5), receiver.url(), "no answer|ended|not HTTP")


async def test_silence_is_no_answer(deliverer):
    async def say_nothing(_request, _writer):
        await asyncio.sleep(LONG_S)

    async with receiving(say_nothing) as receiver:
        await give_up(deliverer(receiver.allow, total_s=0.5), receiver.url(), r"no answer within 0\.5 s")


@pytest.fixture
def over_in_the_body(monkeypatch):
    """
    Let the time for an answer be over when its head and the first part of its body are there.

    How long that takes is the machine's affair.
    """
    limits = []
    timeout = asyncio.timeout

    class Parts(list):
        def append(self, part):
            super().append(part)
            if len(self) == 1:
                limits[0].reschedule(asyncio.get_running_loop().time())

    class Exchange(post._Exchange):
        def __init__(self):
            super().__init__()
            self.parts = Parts()

    def kept(delay):
        limits.append(timeout(delay))
        return limits[-1]

    monkeypatch.setattr(asyncio, "timeout", kept)
    monkeypatch.setattr(post, "_Exchange", Exchange)


async def test_who_said_200_has_the_job_although_the_rest_drips(deliverer, over_in_the_body):
    drip = saying(OK + b'Transfer-Encoding: chunked\r\n\r\n1\r\n"\r\n', again=b"1\r\nx\r\n", pause_s=0.05)
    async with receiving(drip) as receiver:
        sender = deliverer(receiver.allow, total_s=LONG_S)
        assert await asyncio.wait_for(sender.deliver(receiver.url(), delivery()), LONG_S) is None


async def test_a_refusal_counts_although_the_rest_drips(deliverer, over_in_the_body):
    drip = saying(b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\n", again=b"x", pause_s=0.05)
    async with receiving(drip) as receiver:
        await give_up(deliverer(receiver.allow, total_s=LONG_S), receiver.url(), "500")


async def test_a_connection_that_is_never_taken_is_given_up(deliverer):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        # Its queue is full: the next connection hangs.
        full = [socket.socket() for _ in range(4)]
        for each in full:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        sender = deliverer(f"127.0.0.1:{port}", connect_s=0.5, total_s=LONG_S)
        await give_up(sender, f"http://127.0.0.1:{port}/", r"no connection within 0\.5 s")
        for each in full:
            each.close()


async def test_a_handshake_that_hangs_is_given_up(deliverer):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        sender = deliverer(f"127.0.0.1:{port}", connect_s=0.5, total_s=LONG_S)
        await give_up(sender, f"https://127.0.0.1:{port}/", r"no connection within 0\.5 s")


async def test_a_look_up_that_hangs_is_given_up(deliverer):
    answer = threading.Event()

    def ask(_host):
        answer.wait(LONG_S)
        return []

    resolver = Lookups(ask, limit_s=0.1, turn_s=0.1).addresses
    try:
        sender = deliverer(resolver=resolver, total_s=LONG_S)
        await give_up(sender, "https://example.com/", r"no name server answered .* within 0\.1 s")
    finally:
        answer.set()


async def test_nobody_there_is_no_answer(deliverer):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    await give_up(deliverer(f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}/", "refused")


# -- size -------------------------------------------------------------------------------------------------


class Counting:
    """
    A behaviour that writes without end, and counts what was taken.
    """

    def __init__(self, first, again):
        self.first, self.again, self.taken = first, again, 0

    async def __call__(self, _request, writer):
        writer.transport.set_write_buffer_limits(high=0)
        # As little as possible lies between them and us.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        writer.write(self.first)
        while True:
            writer.write(self.again)
            await writer.drain()
            self.taken += len(self.again)


LINE = b"x" * 1000


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(OK + b"Content-Length: 99999999999\r\n\r\n", LINE, id="a length"),
        pytest.param(OK + b"\r\n", LINE, id="no length"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"3e8\r\n" + LINE + b"\r\n", id="chunks"),
        pytest.param(
            OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + LINE + b"\r\nx\r\n", id="sizes of chunks"
        ),
        pytest.param(OK + b"Content-Encoding: gzip\r\n\r\n", bytes(1000), id="a bomb"),
    ],
)
async def test_a_body_without_end_is_dropped_and_the_job_is_done(deliverer, first, again):
    behaviour = Counting(first, again)
    async with receiving(behaviour) as receiver:
        sender = deliverer(receiver.allow, total_s=LONG_S)
        assert await asyncio.wait_for(sender.deliver(receiver.url(), delivery()), LONG_S) is None
    # What the kernels hold in between is not ours to bound.
    assert 20 * 1024 * 1024 > behaviour.taken


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(OK, b"X-Header: " + LINE + b"\r\n", id="headers"),
        pytest.param(OK + b"X: ", LINE, id="a header"),
        pytest.param(b"", LINE, id="a status"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="hints"),
        pytest.param(b"", b"HTTP/1.1 102 X\r\nX: " + LINE + b"\r\n\r\n", id="hints with headers"),
    ],
)
async def test_a_head_without_end_is_no_answer(deliverer, first, again):
    async with receiving(Counting(first, again)) as receiver:
        await give_up(deliverer(receiver.allow, total_s=LONG_S), receiver.url(), "not HTTP|too much came")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"-ERR unknown command\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"\x00\x01\x02",
        b"",
    ],
)
async def test_what_is_not_http_is_no_answer_and_not_told_on(deliverer, answer):
    async with receiving(saying(answer)) as receiver:
        ending = await give_up(deliverer(receiver.allow), receiver.url(), "not HTTP|ended|closed|reset")
    assert "OpenSSH" not in str(ending)
    assert "unknown" not in str(ending)


async def test_an_answer_before_the_whole_request_was_read_counts(deliverer):
    async def refuse(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        large = b'"' + 8_000_000 * b"x" + b'"'
        with pytest.raises(Retry, match="413"):
            await deliverer(f"127.0.0.1:{port}").deliver(f"http://127.0.0.1:{port}/", delivery(large))


# -- addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::"),
        *("10.0.0.1", "169.254.169.254", "100.64.0.1", "fd00::1", "fe80::1", "93.184.215.14 127.0.0.1"),
    ],
)
async def test_a_name_of_a_private_address_is_refused_without_a_connection(deliverer, address):
    sender = deliverer(evil_example=address)
    await give_up(sender, "https://evil.example/", "refused: evil.example is at an address")
    # Nothing was learnt about the host, so nothing is held against it.
    assert 0 == sender.hosts.paused_s("evil.example:443")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]"])
async def test_a_private_address_is_refused_although_somebody_listens(deliverer, host):
    async with receiving(answering()) as receiver:
        await give_up(deliverer(), receiver.url(host, "https"), "refused")
        await give_up(deliverer(), receiver.url(host), "refused")
    assert 0 == receiver.connections


async def test_a_name_that_changes_between_look_ups_is_looked_up_once(deliverer):
    asked = []

    async def resolve(host):
        asked.append(host)
        # A good address to whoever checks, a bad one to whoever connects.
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async with receiving(answering()) as receiver:
        sender = deliverer(receiver.allow, resolver=resolve)
        await sender.deliver(receiver.url("rebind.example"), delivery())
        assert ["rebind.example"] == asked
        assert f"rebind.example:{receiver.port}" == receiver.requests[0].headers["host"]
        # The next callback looks again, and is checked again.
        await give_up(sender, receiver.url("rebind.example"), "refused")
    assert 1 == receiver.connections


async def test_the_environment_names_no_proxy(deliverer, monkeypatch):
    async with receiving(answering()) as receiver, receiving(answering()) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        await deliverer(receiver.allow).deliver(receiver.url(), delivery())
    assert (1, 0) == (receiver.connections, proxy.connections)


async def test_the_next_address_is_tried_where_one_does_not_answer(deliverer):
    async with receiving(answering()) as receiver:
        sender = deliverer("127.0.0.0/8", two_example="127.0.0.2 127.0.0.1")
        await sender.deliver(receiver.url("two.example"), delivery())
    assert 1 == len(receiver.requests)


# -- certificates -----------------------------------------------------------------------------------------


async def test_the_certificate_is_checked_against_the_name_and_not_the_address(deliverer, authority):
    async with receiving(answering(), tls=authority.server_for("hook.example")) as receiver:
        sender = deliverer(receiver.allow, hook_example="127.0.0.1", other_example="127.0.0.1")
        await sender.deliver(receiver.url("hook.example", "https"), delivery())
        await give_up(
            sender, receiver.url("other.example", "https"), "certificate.*not valid for 'other.example'"
        )
        await give_up(sender, receiver.url("127.0.0.1", "https"), "certificate.*not valid for '127.0.0.1'")
    assert 1 == len(receiver.requests)


async def test_an_expired_certificate_is_refused(deliverer, authority):
    async with receiving(answering(), tls=authority.server_for("hook.example", expired=True)) as receiver:
        sender = deliverer(receiver.allow, hook_example="127.0.0.1")
        await give_up(sender, receiver.url("hook.example", "https"), "certificate.*expired")
    assert [] == receiver.requests


async def test_a_certificate_of_an_unknown_authority_is_refused(deliverer, tmp_path):
    from tests.callbacks.certificates import Authority

    tls = Authority(tmp_path).server_for("hook.example")
    async with receiving(answering(), tls=tls) as receiver:
        sender = deliverer(receiver.allow, hook_example="127.0.0.1")
        await give_up(sender, receiver.url("hook.example", "https"), "certificate")
    assert [] == receiver.requests


async def test_https_to_a_server_without_tls_is_no_answer(deliverer):
    async with receiving(answering()) as receiver:
        sender = deliverer(receiver.allow, connect_s=0.5)
        await give_up(sender, receiver.url(scheme="https"), "no connection")


# -- the others -------------------------------------------------------------------------------------------


async def test_a_host_that_hangs_is_left_alone_while_others_are_served(deliverer):
    enough = asyncio.Event()

    async def hang(_request, _writer):
        await enough.wait()

    async with receiving(hang) as bad, receiving(answering()) as good:
        hosts = Hosts(at_once=2, failures=2, pause_s=60)
        sender = deliverer(f"{bad.allow},{good.allow}", total_s=LONG_S, hosts=hosts)
        hanging = [asyncio.create_task(sender.deliver(bad.url(), delivery())) for _ in range(2)]
        while bad.connections < 2:
            await asyncio.sleep(0.01)
        # It has as many as it may get: more are put off, uncounted, and at once.
        with pytest.raises(Snooze):
            await sender.deliver(bad.url(), delivery())
        await sender.deliver(good.url(), delivery())
        assert not any(task.done() for task in hanging)
        enough.set()
        for task in hanging:
            with pytest.raises(Retry):
                await task
        with pytest.raises(Snooze) as caught:
            await sender.deliver(bad.url(), delivery())
        assert 50 <= caught.value.delay <= 90
        await sender.deliver(good.url(), delivery())
    assert (2, 2) == (bad.connections, len(good.requests))


async def test_refusals_of_jobs_are_no_failures_of_the_host(deliverer):
    async with receiving(answering("400 Bad Request")) as receiver:
        sender = deliverer(receiver.allow, hosts=Hosts(failures=1))
        for _ in range(3):
            await give_up(sender, receiver.url(), "400")


def test_limits_are_what_the_documentation_says():
    assert (64 * 1024, 16 * 1024) == (post.BODY_BYTES, post.HEAD_BYTES)
