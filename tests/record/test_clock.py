"""
The record's clock: that of the server, however long its answer takes.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from duly import Duly
from duly.record import clock as clocks
from duly.record.clock import LOOK_S, Clock
from duly.views import Views
from tests.eventually import eventually

SLOW_S = 0.2
HOUR_S = 3600


class Steps:
    """
    The clock of a server, set by a test: what it answers when it is asked for the time.
    """

    def __init__(self, link, monkeypatch):
        self.by_s, self.asked, self._call = 0, 0, link.call
        monkeypatch.setattr(link, "call", self._answer)

    async def _answer(self, *words, **options):
        answer = await self._call(*words, **options)
        if words != ("TIME",):
            return answer
        self.asked += 1
        seconds, micros = answer
        return int(seconds) + self.by_s, micros


def off_s(clock):
    return round(clock.now().floor_ms / 1000 - time.time())


async def test_a_slow_answer_makes_nothing_due_later_and_no_delay_shorter(queue, monkeypatch):
    call, views, clock = queue.link.call, Views(queue), Clock(queue)

    async def slowly(*words):
        await asyncio.sleep(SLOW_S)
        answer = await call(*words)
        await asyncio.sleep(SLOW_S)
        return answer

    monkeypatch.setattr(queue.link, "call", slowly)
    await clock.look()
    monkeypatch.undo()
    before_ms = await views.now_ms()
    moment = clock.now()
    after_ms = await views.now_ms()
    assert moment.floor_ms <= after_ms
    assert before_ms <= moment.ceil_ms


async def test_numbers_of_changes_grow_though_an_answer_takes_longer_than_the_one_before(queue, monkeypatch):
    call, clock = queue.link.call, Clock(queue)
    await clock.look()
    before = [clock.now() for _ in range(1_000)]

    async def slowly(*words):
        answer = await call(*words)
        await asyncio.sleep(SLOW_S / 2)
        return answer

    monkeypatch.setattr(queue.link, "call", slowly)
    monkeypatch.setattr(clocks, "LOOK_S", 0)
    await clock.look()
    numbers = [moment.number for moment in (*before, *(clock.now() for _ in range(1_000)))]
    assert sorted(set(numbers)) == numbers


async def test_numbers_of_changes_grow_while_a_test_stops_the_clock(queue, monkeypatch):
    monkeypatch.setattr(queue, "now_ms", lambda _: 1_000)
    clock = Clock(queue)
    assert [1_000_000, 1_000_001] == [clock.now().number for _ in range(2)]


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
async def test_a_server_whose_clock_is_set_is_followed_within_a_second_or_so(queue, monkeypatch, step_s):
    server, clock = Steps(queue.link, monkeypatch), Clock(queue)
    await clock.look()
    assert 0 == off_s(clock)
    server.by_s = step_s
    began = time.monotonic()

    async def follows():
        await clock.look()
        return step_s == off_s(clock)

    await eventually(follows)
    # Once more at the end of each second at most, however often it is looked at.
    assert 2 <= server.asked <= 2 + (time.monotonic() - began) / LOOK_S


async def test_a_promise_after_a_pause_counts_from_the_servers_time(
    valkey, namespace, migrated_url, monkeypatch
):
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:
        record = await app.record()
        await app.enqueue("mail", 1, delay=60)
        server = Steps(record.store.link, monkeypatch)
        server.by_s = HOUR_S
        await asyncio.sleep(LOOK_S)
        jobs = await asyncio.gather(*(app.enqueue("mail", 1, delay=60) for _ in range(20)))
        assert {HOUR_S + 60} == {round(job.placed.due_ms / 1000 - time.time(), -1) for job in jobs}


@pytest.mark.parametrize("of_both", [True, False], ids=["a machine that slept", "one that stood still"])
async def test_the_server_is_asked_again_after_a_sleep(queue, monkeypatch, of_both):
    server, clock = Steps(queue.link, monkeypatch), Clock(queue)
    await clock.look()
    await clock.look()
    assert 1 == server.asked
    # While a machine sleeps its steady clock goes on; that of a virtual one that is halted may not.
    steady_ns, time_ns, slept_ns = clocks.steady_ns, time.time_ns, HOUR_S * 1_000_000_000
    if of_both:
        monkeypatch.setattr(clocks, "steady_ns", lambda: steady_ns() + slept_ns)
    monkeypatch.setattr(clocks.time, "time_ns", lambda: time_ns() + slept_ns)
    server.by_s = HOUR_S
    await clock.look()
    assert 2 == server.asked
    assert HOUR_S == off_s(clock)


async def test_callers_wait_for_the_first_answer_together(queue, monkeypatch):
    server, clock = Steps(queue.link, monkeypatch), Clock(queue)
    server.by_s = HOUR_S
    await asyncio.gather(*(clock.look() for _ in range(50)))
    assert (1, HOUR_S) == (server.asked, off_s(clock))


async def test_a_server_that_does_not_answer_is_left_alone_for_a_while(queue, monkeypatch):
    asked = []

    async def never(*_):
        asked.append(1)
        raise TimeoutError

    monkeypatch.setattr(queue.link, "call", never)
    clock = Clock(queue)
    for _ in range(50):
        await clock.look()
    # The question, and one look whether it is back.
    assert [1, 1] == asked
    assert 0 == off_s(clock)
