"""
Many shards: more than a process has connections.
"""

from __future__ import annotations

import asyncio
import time

from duly import current_job
from duly.connection import MAX_CONNECTIONS
from duly.job import JobKey
from tests.eventually import eventually
from tests.services.conftest import LAZY, working

SOON_S = 60  #: far from five minutes, in which lazy workers look by themselves


async def test_a_worker_with_256_shards_runs_jobs_of_all_of_them_on_few_connections(make_app, own_server):
    app = make_app(own_server.url, shards=256, **LAZY)
    late: dict[str, float] = {}

    @app.handler("tick")
    async def tick() -> None:
        job = current_job()
        late[job.id] = time.time() - job.due_at.timestamp()

    store = await app.store()
    of_shard: dict[int, list[str]] = {}
    for number in range(10_000):
        of_shard.setdefault(store._shard(JobKey("tick", str(number))), []).append(str(number))
    assert 256 == len(of_shard)
    async with working(app):
        # At once, and from a time on of which only the timer streams tell.
        for delay, ids in zip((0, 0.3), zip(*of_shard.values(), strict=False), strict=False):
            await asyncio.gather(*(app.enqueue("tick", {}, id=id_, delay=delay) for id_ in ids))
            await eventually(lambda ids=ids: late.keys() >= set(ids), SOON_S)

        async def waits() -> bytes:
            """
            One connection waits for all timer streams, and one for all wake-ups.
            """
            clients: bytes = await store.link.call("CLIENT", "LIST")
            assert (1, 1) == (clients.count(b" cmd=xread "), clients.count(b" cmd=blpop "))
            return clients

        clients = await eventually(waits, SOON_S)
    assert 2 * 256 == len(late)
    assert 0 <= min(late.values())
    # The worker and the sender may have all of theirs; the heart has one, and there is one for messages.
    assert len(clients.splitlines()) <= 2 * MAX_CONNECTIONS + 8
