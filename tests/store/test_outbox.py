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
        spawn=lambda coroutine: tasks.append(asyncio.get_running_loop().create_task(coroutine)),
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


async def test_long_results_leave_in_calls_of_their_own(store, outbox):
    for number in range(4):
        await enqueue(store, str(number))
    for lease in await claim(store):
        outbox.ack(Run(lease, HANDLER, 0.0), b"x" * (BATCH_BYTES // 2 - 1))
    await eventually(lambda: [b"ok"] * 4 == outbox.told)
    assert [2, 2] == outbox.left
