"""
The steps of docs/explanation/life-of-a-job.md change the keys that the page says they change.
"""

from __future__ import annotations

import re

import pytest
import redis

from duly.job import JobKey, Order
from duly.store import Want
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "life-of-a-job.md"


@pytest.fixture
def server(valkey):
    return valkey


@pytest.fixture
def raw(valkey):
    with redis.Redis(unix_socket_path=str(valkey.socket)) as client:
        yield client


def _table() -> list[tuple[str, set[str]]]:
    rows = PAGE.read_text("utf-8").partition("<!-- steps -->")[2].strip().split("\n\n")[0].split("\n")[2:]
    return [(row.split("|")[1].strip(), set(re.findall(r"`([^`]+)`", row))) for row in rows]


async def test_each_step_changes_the_keys_that_the_page_names(store, clock, raw):
    prefix = store.keys[0].prefix

    def keys() -> dict[str, bytes]:
        return {key.decode().removeprefix(prefix): raw.dump(key) for key in raw.keys(f"{prefix}*")}

    async def claim():
        [lease] = (await store.claim(0, [Want("mail", 5, 60_000)], worker="w")).leases
        return lease

    async def steps():
        await store.enqueue(Order(JobKey("mail", "a"), b"{}", delay_ms=1_000))
        yield "enqueue with a delay"
        clock.advance(s=1)
        await store.promote(0)
        yield "promote"
        lease = await claim()
        yield "claim"
        clock.advance(s=1)
        await store.extend(0, [lease])
        yield "extend"
        await store.ack(lease, b"1")
        yield "ack"
        await store.enqueue(Order(JobKey("mail", "b"), b"{}", delay_ms=1_000))
        yield "enqueue another with a delay"
        clock.advance(s=1)
        await claim()
        yield "claim when it is due"
        clock.advance(s=20)
        await store.recover(0)
        yield "recover after a crash"
        await claim()
        yield "claim the suspect"

    seen, before = [], keys()
    async for step in steps():
        after = keys()
        seen.append(
            (step, {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)})
        )
        before = after
    assert _table() == seen
