"""
Two servers that follow each other: after a failover, a failback or a split only one of them hands out jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from duly.connection import Link
from duly.errors import DulyError, StoreUnavailable
from duly.job import JobState
from duly.record.bringback import BringBack
from duly.record.clock import Clock
from duly.record.guard import Guard
from duly.record.relay import Relay
from duly.record.startcheck import StartCheck
from duly.store import Store
from tests.eventually import eventually
from tests.ports import held_port
from tests.record.kit import HOUR_MS, both, change_row, now_ms, row
from tests.servers import Server, binary
from tests.store.kit import claim

if TYPE_CHECKING:
    from collections.abc import Awaitable

pytestmark = pytest.mark.parametrize("migrated_url", ["sqlite", "postgresql"], indirect=True)


class Side:
    """
    One server, and a process that works with it.
    """

    def __init__(self, server: Server, port: int, namespace: str, shards: int, database) -> None:
        self.server = server
        self.port = port
        self.link = Link(server.url)
        self.store = Store(self.link, namespace=namespace, shards=shards)
        self.guard = Guard(database, self.store, hint=lambda: None, settle_s=0)
        self.store.agree, self.store.generation = self.guard.agree, self.guard.known
        clock = Clock(self.store)
        relay = Relay(database, self.store, horizon_ms=HOUR_MS, generation=self.guard.known, clock=clock)
        self.store.startable = StartCheck(database, self.store, self.guard, relay).startable
        self.back = BringBack(database, self.store, relay, clock, generation=self.guard.known)

    async def follow(self, other: Side) -> None:
        """
        Become a replica of the other side, and take over all it has.
        """
        await self.link.call("REPLICAOF", "127.0.0.1", other.port)

        async def synced() -> None:
            told = (await self.link.call("INFO", "replication")).decode()
            mine = await self.link.call("ROLE")
            there = await other.link.call("ROLE")
            assert "master_link_status:up" in told
            assert mine[4] == there[1]

        await eventually(synced, 20)

    async def lead(self) -> None:
        await self.link.call("REPLICAOF", "NO", "ONE")

    async def bring_back(self) -> None:
        while await self.back.run_once():
            pass

    async def claimed(self) -> list[str]:
        return sorted(lease.key.id for lease in await claim(self.store, limit=100))


@pytest.fixture
async def sides(namespace, shards, database):
    with held_port() as one, held_port() as other:
        servers = [Server(binary("valkey"), "--port", str(port)) for port in (one, other)]
        made = []
        for server, port in zip(servers, (one, other), strict=True):
            server.start()
            made.append(Side(server, port, namespace, shards, database))
        await made[0].store.create()
        yield made
        for side in made:
            await side.link.aclose()
            side.server.stop()


def due(namespace: str, *ids: str) -> list[dict]:
    return [row(namespace, id_, due_ms=now_ms() - 1) for id_ in ids]


async def end(database, side: Side) -> None:
    """
    Run what the side hands out, and tell the rows.
    """
    for lease in await claim(side.store, limit=100):
        await side.store.ack(lease, b"1")
        await change_row(database, lease.key.id, state=JobState.succeeded, ended_ms=now_ms(), outcome=b"1")


async def test_a_promoted_replica_hands_out_nothing_before_it_was_compared(database, namespace, sides):
    one, other = sides
    await one.guard.agree()
    await both(database, one.store, *due(namespace, "a"))
    await other.follow(one)
    await other.lead()
    other.store.agree = None
    with pytest.raises(DulyError, match="has a record"):
        await claim(other.store)
    other.store.agree = other.guard.agree
    assert ["a"] == await other.claimed()
    assert 2 == other.guard.generation


async def test_after_a_failback_nothing_begins_that_has_ended(database, namespace, sides):
    """
    The first server comes back with the process, and so the approvals, that it had before.
    """
    one, other = sides
    await one.guard.agree()
    await both(database, one.store, *due(namespace, *map(str, range(20))))
    await other.follow(one)
    await other.lead()
    await end(database, other)
    # What ended on the other side while nobody followed it is not there.
    assert [] == await other.claimed()
    await one.lead()
    assert [] == await _begun_after_their_end(database, one)
    await one.follow(other)
    await one.lead()
    assert [] == await one.claimed()


async def is_refused(call: Awaitable[object]) -> bool:
    """
    Return whether a server says that it was replaced.
    """
    try:
        await call
    except StoreUnavailable as error:
        return "was replaced by another one" in str(error)
    return False


async def _begun_after_their_end(database, side: Side) -> list[str]:
    try:
        return await side.claimed()
    except StoreUnavailable:
        return []


async def test_the_older_side_of_a_split_stops_and_is_not_approved_again(
    database, namespace, sides, monkeypatch
):
    monkeypatch.setattr("duly.record.guard.APPROVED_MS", 300)
    one, other = sides
    await one.guard.agree()
    await both(database, one.store, *due(namespace, *map(str, range(200))))
    await other.follow(one)
    await one.guard.agree()
    before = one.guard.generation
    # Nobody tells the first one: it is a primary still, and its workers go on.
    await other.lead()
    await other.guard.agree()

    async def stopped() -> None:
        assert await is_refused(claim(one.store, limit=1))

    await eventually(stopped)
    ran_there = await other.claimed()
    assert ran_there
    with pytest.raises(StoreUnavailable, match="was replaced by another one"):
        await one.guard.agree()
    assert (before, before + 1) == (one.guard.generation, other.guard.generation)


async def test_a_replaced_server_counts_again_once_the_other_one_is_not_approved_any_more(
    database, namespace, sides, monkeypatch
):
    """
    A former primary that came back for a moment must not lock out the one that everybody goes on with.
    """
    one, other = sides
    await one.guard.agree()
    await other.follow(one)
    await one.guard.agree()
    await other.lead()
    await other.guard.agree()
    await both(database, one.store, *due(namespace, "a"))
    with pytest.raises(StoreUnavailable, match="was replaced by another one"):
        await one.guard.agree()
    monkeypatch.setattr("duly.record.guard.SILENT_S", 0.2)
    await other.guard.agree()
    with pytest.raises(StoreUnavailable, match="was replaced by another one"):
        await one.guard.agree()

    async def taken_over() -> None:
        assert not await is_refused(one.guard.agree())

    await eventually(taken_over)
    assert one.guard.generation == other.guard.generation + 1
    with pytest.raises(StoreUnavailable, match="was replaced by another one"):
        await other.guard.agree()


async def test_a_split_is_noticed_within_an_approval_also_by_a_process_that_renews(
    database, namespace, sides, monkeypatch
):
    one, other = sides
    await one.guard.agree()
    await other.follow(one)
    await one.guard.agree()
    await other.lead()
    await other.guard.agree()
    monkeypatch.setattr("duly.record.guard.RENEWED_MS", 60_000)
    with pytest.raises(StoreUnavailable, match="was replaced by another one"):
        await one.guard.run_once()


async def test_an_approval_is_void_after_a_promotion(database, namespace, sides):
    """
    Also one without an end, in the memory of a process that was demoted meanwhile and resynchronised in part.
    """
    one, other = sides
    await one.guard.agree()
    await both(database, one.store, *due(namespace, "a"))
    await other.follow(one)
    await one.guard.agree()
    current = one.guard.current
    await one.store.approve(current.record_id, current.number)
    assert [] != [life.until_ms for life in await one.store.lives()]
    await other.lead()
    await one.follow(other)
    await one.lead()
    one.store.agree = None
    with pytest.raises(DulyError, match="has a record"):
        await claim(one.store)
