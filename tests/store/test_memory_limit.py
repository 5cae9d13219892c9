"""
At its memory limit a server takes no functions: work goes on, and new work is refused.
"""

from __future__ import annotations

import re

import pytest

from duly.connection import Link
from duly.errors import StoreUnavailable
from duly.scripts import library
from duly.store import Store, Want
from tests.eventually import eventually
from tests.servers import Server, binary
from tests.store.kit import enqueue, key, order

PAYLOAD = b'"' + b"x" * 600 + b'"'


@pytest.fixture(params=["valkey", "redis"])
async def full(request, namespace):
    """
    A server at its memory limit, with jobs, and without any functions.
    """
    server = Server(binary(request.param)).start()
    link = Link(server.url)
    try:
        store = Store(link, namespace=namespace)
        await store.create()
        await store.enqueue_many([order(str(number), payload=PAYLOAD) for number in range(50)])
        await link.call("FUNCTION", "FLUSH")
        used = dict(
            line.split(":", 1) for line in (await link.call("INFO", "memory")).decode().split() if ":" in line
        )
        await link.call("CONFIG", "SET", "maxmemory", int(used["used_memory"]) // 2)
        yield store
    finally:
        await link.aclose()
        server.stop()


async def test_a_new_release_claims_and_finishes_on_a_full_server(full, caplog):
    claimed = await full.claim(0, [Want("mail", 20, 60_000)], worker="w", limit=20)
    first, second, third, *rest = claimed.leases
    assert 17 == len(rest)
    await full.ack(first, b'"done"')
    await full.retry(second, 1_000, b"{}", "Boom")
    await full.bury(third, b"{}", "Boom")
    await full.extend(0, rest)
    for lease in rest:
        await full.release(lease)
    await full.cancel([key("49")])
    states = [about[0][0] & 7 for about in await full.get([lease.key for lease in claimed.leases[:3]])]
    assert [3, 0, 4] == states
    assert "raise maxmemory" in caplog.text
    assert [] == await full.link.call("FUNCTION", "LIST")


async def test_new_work_is_refused_on_a_full_server_with_what_to_do(full):
    with pytest.raises(StoreUnavailable, match=r"at its memory limit.*raise maxmemory"):
        await enqueue(full, "new")


async def test_functions_are_loaded_again_once_there_is_room(full, monkeypatch):
    monkeypatch.setattr("duly.connection.EVALUATES_S", 0.0)
    await full.claim(0, [Want("mail", 1, 60_000)], worker="w")
    await full.link.call("CONFIG", "SET", "maxmemory", "0")
    await enqueue(full, "new")
    [loaded] = await full.link.call("FUNCTION", "LIST")
    assert library().name.encode() in loaded


async def test_new_work_is_accepted_soon_after_there_is_room(full, monkeypatch, caplog):
    """
    Long before the functions would be tried again for work that can do without.
    """
    monkeypatch.setattr("duly.connection.EVALUATES_S", 600.0)
    await full.claim(0, [Want("mail", 1, 60_000)], worker="w")
    for number in range(20):
        with pytest.raises(StoreUnavailable, match="raise maxmemory"):
            await enqueue(full, f"refused{number}")
    assert 1 == caplog.text.count("jobs are claimed and finished without"), "said once"
    await full.link.call("CONFIG", "SET", "maxmemory", "0")

    async def accepted():
        try:
            await enqueue(full, "new")
        except StoreUnavailable as error:
            raise AssertionError(error) from error

    await eventually(accepted)
    assert 1 == len(await full.link.call("FUNCTION", "LIST"))


async def test_a_full_server_is_not_flooded_with_functions(full):
    await full.claim(0, [Want("mail", 1, 60_000)], worker="w")
    for number in range(200):
        with pytest.raises(StoreUnavailable):
            await enqueue(full, f"refused{number}")
    stats = (await full.link.call("INFO", "commandstats")).decode()
    [loads] = re.findall(r"cmdstat_function\|load:.*rejected_calls=(\d+)", stats)
    assert int(loads) < 100
