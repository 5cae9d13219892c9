"""
Connect: a queue may be connected anew at any time.
"""

from __future__ import annotations

from duly import JobState
from tests.contract.handlers import add
from tests.contract.kit import SOON_S


async def test_a_result_is_awaited_after_the_queue_was_connected_anew(queue, working):
    async with working():
        sent = await queue.enqueue(add.job(1))
        assert 1 == await sent.result(timeout=SOON_S)
    await queue.reconnect()
    assert 1 == await sent.result(timeout=SOON_S)


async def test_a_queue_that_is_connected_anew_is_as_it_was(queue):
    sent = await queue.enqueue("mail", id="a", delay=60)
    await queue.reconnect()
    assert JobState.scheduled is (await sent.get()).state
    assert not (await queue.enqueue("mail", id="a")).created
