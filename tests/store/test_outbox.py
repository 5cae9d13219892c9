"""
Successes leave together: no job twice in one call, and not too much at once.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from duly.services.outbox import BATCH_BYTES, Outbox
from duly.services.running import Run
from duly.store import PER_CALL
from tests.eventually import eventually
from tests.shards import ids_on
from tests.store.kit import claim, enqueue

HANDLER = SimpleNamespace(topic="mail", concurrency=None, isolates=False, run_in="loop")


@pytest.fixture
async def outbox(store):
    """
    One that notes what leaves together, and what it was told.
    """
    tasks, told, left = [], [], []
    finish = store.finish

    async def noting(verb, shard, batch):
        left.append(len(batch))
        return await finish(verb, shard, batch)

    store.finish = noting
    made = Outbox(
        store,
        worker="w1",
        spawn=lambda coroutine, context: tasks.append(
            asyncio.get_running_loop().create_task(coroutine, context=context)
        ),
        settled=lambda run, word: told.append(word),
    )
    made.told, made.left = told, left
    yield made
    await asyncio.gather(*tasks)


async def test_many_leave_in_full_calls(store, outbox):
    for number in range(PER_CALL + 5):
        await enqueue(store, str(number))
    for lease in [*await claim(store, limit=PER_CALL), *await claim(store)]:
        outbox.ack(Run(lease, HANDLER, 0.0), b"")
    await eventually(lambda: [b"ok"] * (PER_CALL + 5) == outbox.told)
    assert [PER_CALL, 5] == outbox.left


async def test_two_runs_of_one_job_leave_one_after_the_other(store, outbox, clock):
    await enqueue(store, "a")
    [first] = await claim(store)
    clock.advance(s=60)
    await store.recover(0)
    [second] = await claim(store)
    for lease in (first, second):
        outbox.ack(Run(lease, HANDLER, 0.0), b"")
    await eventually(lambda: [b"lost", b"ok"] == outbox.told)
    assert [1, 1] == outbox.left


@pytest.mark.several_shards
async def test_what_waits_behind_a_call_that_is_late_passes_it_on_every_shard(store, outbox, monkeypatch):
    monkeypatch.setattr("duly.services.outbox.LATE_S", 0.05)
    finish, stuck = store.finish, asyncio.Event()
    held: list[int] = []

    async def late_at_first(verb, shard, batch):
        if shard not in held:
            held.append(shard)
            await stuck.wait()
        return await finish(verb, shard, batch)

    store.finish = late_at_first
    for shard in range(store.shards):
        for id_ in ids_on(store, "mail", shard, 2):
            await enqueue(store, id_)
    for lease in await claim(store):
        outbox.ack(Run(lease, HANDLER, 0.0), b"")
        await asyncio.sleep(0)  # the first of each shard leaves alone
    try:
        await eventually(lambda: [b"ok"] * store.shards == outbox.told)
    finally:
        stuck.set()
    await eventually(lambda: [b"ok"] * 2 * store.shards == outbox.told)


async def test_long_results_leave_in_calls_of_their_own(store, outbox):
    for number in range(4):
        await enqueue(store, str(number))
    for lease in await claim(store):
        outbox.ack(Run(lease, HANDLER, 0.0), b"x" * (BATCH_BYTES // 2 - 1))
    await eventually(lambda: [b"ok"] * 4 == outbox.told)
    assert [2, 2] == outbox.left
