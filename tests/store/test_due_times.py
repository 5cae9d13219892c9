"""
Due times on the server's own clock: a delay is never shorter than was asked for, by no part of a millisecond.
"""

from __future__ import annotations

import pytest

from tests.store.kit import claim, enqueue, key

DELAY_MS = 60_000
ROUNDS = 50  #: in most of them the call comes within the millisecond in which the clock was read before it


async def clock_us(store):
    seconds, micros = await store.link.call("TIME")
    return int(seconds) * 1_000_000 + int(micros)


async def enqueued(store, id_):
    before_us = await clock_us(store)
    await enqueue(store, id_, delay_ms=DELAY_MS)
    return before_us


async def rescheduled(store, id_):
    await enqueue(store, id_, delay_ms=2 * DELAY_MS)
    before_us = await clock_us(store)
    await store.reschedule(key(id_), delay_ms=DELAY_MS)
    return before_us


async def retried(store, id_):
    await enqueue(store, id_)
    [lease] = await claim(store)
    before_us = await clock_us(store)
    await store.retry(lease, DELAY_MS)
    return before_us


@pytest.mark.parametrize("scheduled", [enqueued, rescheduled, retried], ids=lambda verb: verb.__name__)
async def test_a_delay_is_never_shorter_than_was_asked_for(live, scheduled):
    begun_us = {str(number): await scheduled(live, str(number)) for number in range(ROUNDS)}
    members = [key(id_).member for id_ in begun_us]
    found = await live.link.call("ZMSCORE", live.keys[0].due("mail"), *members)
    due_ms = dict(zip(begun_us, map(int, found), strict=True))
    early = {id_ for id_, us in begun_us.items() if due_ms[id_] * 1000 < us + DELAY_MS * 1000}
    assert set() == early
