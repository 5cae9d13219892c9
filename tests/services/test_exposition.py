"""
Metrics of a worker over HTTP, for clients that say nothing, too little or too slowly.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress

import pytest

from duly import exposition
from tests.eventually import eventually

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


def application(_environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"up\n"]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(exposition, "EVERY_S", 0.02)
    server = exposition.start(application, "127.0.0.1", 0)
    yield server
    server.shutdown()
    server.server_close()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.server_port), 30)


def read(client):
    """
    What comes until the end, also if that is a reset.
    """
    said = b""
    try:
        while data := client.recv(65_536):
            said += data
    except ConnectionError:
        pass
    return said


def get(server):
    with connect(server) as client:
        with suppress(ConnectionError):  # it may be closed before
            client.sendall(GET + b"\r\n")
        return read(client)


@pytest.mark.parametrize("said", [b"", b"GET /met", GET], ids=["nothing", "half a line", "half a head"])
def test_a_client_that_does_not_ask_is_ended_when_its_time_is_over(server, monkeypatch, said):
    monkeypatch.setattr(exposition, "LIMIT_S", 0.2)
    with connect(server) as client:
        client.sendall(said)
        read(client)
    monkeypatch.setattr(exposition, "LIMIT_S", 60)
    assert b"up" in get(server)


def test_one_that_drips_is_ended_as_well(server, monkeypatch):
    monkeypatch.setattr(exposition, "LIMIT_S", 0.2)
    with connect(server) as client, pytest.raises(ConnectionError):
        client.settimeout(0.01)
        client.sendall(GET + b"x: ")
        for _ in range(3_000):
            client.sendall(b"x")
            try:
                if not client.recv(1):
                    raise ConnectionAbortedError
            except TimeoutError:
                continue


async def test_connections_too_many_are_closed_and_room_comes_back(server, monkeypatch):
    monkeypatch.setattr(exposition, "MOST", 3)
    with ExitStack() as stack:
        there = [stack.enter_context(connect(server)) for _ in range(3)]
        await eventually(lambda: 3 == len(server._since_s), 30)
        for _ in range(5):
            assert b"" == await asyncio.to_thread(get, server)
        assert 3 == len(server._since_s)
        there.pop().close()
        await eventually(lambda: 2 == len(server._since_s), 30)
        assert b"up" in await asyncio.to_thread(get, server)
    await eventually(lambda: {} == server._since_s, 30)


def test_another_name_than_those_of_this_machine_is_refused(server):
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert b" 421 " in read(client)
