"""
One connection, one call at a time: every reply reaches who asked for it, or the connection is given up.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.asyncio import UnixDomainSocketConnection

from duly.connection import Link
from duly.wire import ReplyError, Wire, WireLost
from tests.eventually import eventually


@pytest.fixture
async def wire(server):
    connection = UnixDomainSocketConnection(path=server.url.removeprefix("unix://"), protocol=2)
    await connection.connect()
    wire = Wire(connection)
    yield wire
    await wire.aclose()


def waits(raw):
    return b" cmd=blpop " in raw.execute_command("CLIENT", "LIST")


async def test_a_reply_comes_back_however_long_it_is(wire):
    long = b"x" * 5_000_000
    assert long == await wire.exchange(("ECHO", long), 10)
    assert b"short" == await wire.exchange(("ECHO", b"short"), 10)


async def test_an_error_of_the_server_has_a_code_and_leaves_the_wire_whole(wire):
    with pytest.raises(ReplyError) as caught:
        await wire.exchange(("NOSUCHCOMMAND",), 10)
    assert "ERR" == caught.value.code
    assert caught.value.said.startswith("unknown command")
    assert not wire.lost
    assert b"PONG" == await wire.exchange(("PING",), 10)


async def test_without_a_reply_in_time_the_wire_is_given_up(wire):
    with pytest.raises(WireLost, match="no reply within"):
        await wire.exchange(("BLPOP", "nothing-here", 30), 0.05)
    assert wire.lost
    with pytest.raises(WireLost, match="closed"):
        await wire.exchange(("PING",), 10)


@pytest.mark.parametrize("before_s", [0.01, 30])
async def test_a_call_has_its_own_time_whatever_the_one_before_had(wire, before_s):
    await wire.exchange(("PING",), before_s)
    began = time.monotonic()
    with pytest.raises(WireLost, match="no reply within"):
        await wire.exchange(("BLPOP", "nothing-here", 5), 0.1)
    assert time.monotonic() - began >= 0.1


async def test_a_call_is_not_given_up_when_the_time_of_the_one_before_is_over(wire):
    await wire.exchange(("PING",), 0.05)
    assert await wire.exchange(("BLPOP", "nothing-here", 0.2), 30) is None


async def test_many_calls_leave_no_timers_behind(wire):
    for _ in range(100):
        await wire.exchange(("PING",), 30)
    assert 1 >= len(asyncio.get_running_loop()._scheduled)


async def test_a_wire_that_the_server_closed_knows_it_before_it_is_used(wire, raw):
    raw.client_kill_filter(_id=await wire.exchange(("CLIENT", "ID"), 10))
    await eventually(lambda: wire.lost)


async def test_a_call_under_way_is_told_that_the_server_closed(wire, raw):
    number = await wire.exchange(("CLIENT", "ID"), 10)
    call = asyncio.create_task(wire.exchange(("BLPOP", "nothing-here", 30), 60))
    await eventually(lambda: waits(raw))
    raw.client_kill_filter(_id=number)
    with pytest.raises(WireLost):
        await call


async def test_a_reply_to_a_cancelled_call_reaches_nobody_else(link, raw):
    call = asyncio.create_task(link.call("BLPOP", "a-list", 30))
    await eventually(lambda: waits(raw))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    raw.rpush("a-list", "late")
    assert [b"one", b"two"] == [await link.call("ECHO", word) for word in ("one", "two")]


async def test_idle_connections_that_were_closed_are_replaced_without_a_replay(link, raw):
    number = await link.call("CLIENT", "ID")
    raw.client_kill_filter(_id=number)
    await eventually(lambda: all(wire.lost for wire in link._idle))
    other = await asyncio.wait_for(link._exchange(("CLIENT", "ID"), time.monotonic() + 10), 10)
    assert other != number


async def test_a_connection_whose_call_ends_after_the_link_is_closed_is_closed_too(server):
    link = Link(server.url)
    await link.call("PING")
    waiting = asyncio.create_task(link.call("BLPOP", "nothing", 1, block_s=1))
    other = Link(server.url)
    name = (await link.call("CLIENT", "ID"), await other.call("CLIENT", "ID"))

    async def blocks() -> None:
        assert b" cmd=blpop " in await other.call("CLIENT", "LIST")

    await eventually(blocks)
    await link.aclose()
    await waiting
    assert not link._wires

    async def gone() -> None:
        assert f"id={name[0]} ".encode() not in await other.call("CLIENT", "LIST")

    await eventually(gone)
    await other.aclose()
