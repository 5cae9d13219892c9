"""
Pauses between tries.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.pauses import Pauses


def test_they_grow_up_to_the_longest_and_begin_anew_when_it_works():
    pauses = Pauses(1.0, 6.0)
    for most in (1, 2, 4, 6, 6):
        assert most == pauses.next_s
        assert most / 2 <= pauses.take() <= most
    pauses.reset()
    assert 1 == pauses.next_s


def test_no_two_wait_the_same():
    assert 100 == len({Pauses().take() for _ in range(100)})


async def test_a_loop_ends_although_its_cancellation_was_answered_with_another_error():
    begun = asyncio.Event()

    async def loop() -> None:
        pauses = Pauses(600, 600)
        while True:
            try:
                begun.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await pauses.wait()  # as after an error

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)


async def test_a_loop_that_is_to_stop_waits_no_longer():
    stop = asyncio.Event()
    waiting = asyncio.create_task(Pauses(600, 600).wait(stop))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(waiting, 30)
