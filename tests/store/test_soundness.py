"""
A queue with a record hands out nothing before somebody has compared the two since the server began.
"""

from __future__ import annotations

import pytest

from duly.connection import Link
from duly.errors import ServerUnsuitable
from duly.store import Store
from tests.servers import Server, binary
from tests.shards import fixed_of
from tests.store.kit import claim, enqueue

pytestmark = pytest.mark.several_shards

RECORD = ("the-record", 1)


async def test_an_approved_queue_hands_out_its_jobs(store):
    await store.approve(*RECORD)
    await enqueue(store, "a")
    assert ["a"] == [lease.key.id for lease in await claim(store)]


async def test_without_a_record_nobody_has_to_approve(store):
    await enqueue(store, "a")
    assert 1 == len(await claim(store))


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_a_server_that_was_started_again_hands_out_nothing_until_it_is_compared(
    kind, namespace, shards
):
    server = Server(binary(kind), appendfsync="always").start()
    link = Link(server.url)
    store = Store(link, namespace=namespace, shards=shards)
    await store.create()
    await store.approve(*RECORD)
    await enqueue(store, "a")
    server.kill()
    server.start()
    with pytest.raises(ServerUnsuitable, match=r"has a record.*DULY_RECORD"):
        await claim(store)
    asked = []

    async def agree() -> None:
        asked.append(1)
        await store.approve(*RECORD)

    store.agree = agree
    assert ["a"] == [lease.key.id for lease in await claim(store)]
    assert [1] == asked
    await link.aclose()
    server.stop()


async def test_numbers_that_went_back_under_a_running_server_are_noticed(store, raw):
    await store.approve(*RECORD)
    await enqueue(store, "a")
    await claim(store)
    raw.hincrby(fixed_of(store, "mail", "a")["meta"], "sequence", -1_000)
    with pytest.raises(ServerUnsuitable, match="has a record"):
        await claim(store)


async def test_who_knows_of_another_generation_is_told_before_it_gets_anything(store):
    await store.approve(*RECORD)
    await enqueue(store, "a")
    known = [2]
    store.generation = lambda: known[0]

    async def agree() -> None:
        known[0] = 1

    store.agree = agree
    assert ["a"] == [lease.key.id for lease in await claim(store)]
    assert [1] == known
