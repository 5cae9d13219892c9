"""
Frozen time and the clock of a test bed: freezegun and time-machine, as tests use them.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from freezegun import freeze_time

from duly import UsageError
from duly.testing import TestClock

HOUR = timedelta(hours=1)
DAYS = ["2020-01-01 09:30:00.000500", "2035-01-01"]  # a time that ends within a millisecond, and one to come


@pytest.fixture
def sent(duly_app):
    """
    What two handlers have sent: one on the loop, one in a thread.
    """
    sent: list[str] = []

    @duly_app.handler("mail.loop")
    async def on_loop(name: str) -> None:
        sent.append(name)

    @duly_app.handler("mail.thread")
    def in_thread(name: str) -> None:
        sent.append(name)

    return sent


async def after_an_hour(duly_app, duly, sent, move) -> None:
    """
    Send as the code under test does, by the time of day, and see that an hour has to pass.
    """
    for topic in ("mail.loop", "mail.thread"):
        await duly_app.enqueue(topic, {"name": topic}, due_at=datetime.now(UTC) + HOUR)
    assert not await duly.drain()
    move(HOUR - timedelta(seconds=1))
    assert not await duly.drain()
    move(timedelta(seconds=2))  # freezegun forgets how long it ticked when it is moved
    assert 2 == len(await duly.drain(raises=True))
    assert ["mail.loop", "mail.thread"] == sorted(sent)
    assert abs(datetime.now(UTC) - duly.clock.now) < timedelta(seconds=1)


@pytest.mark.parametrize("mover", ["freezegun", "duly"])
@pytest.mark.parametrize("options", [{}, {"real_asyncio": True}, {"tick": True}, {"tz_offset": -5}], ids=str)
@pytest.mark.parametrize("day", DAYS)
async def test_a_job_runs_when_the_time_of_freezegun_has_come(duly_app, duly, sent, day, options, mover):
    await duly_app.enqueue("mail.loop", {"name": "before"}, id="before")  # connected before time is frozen
    await duly.drain(raises=True)
    sent.clear()
    with freeze_time(day, **options) as frozen:
        await after_an_hour(duly_app, duly, sent, frozen.tick if mover == "freezegun" else duly.clock.advance)


@pytest.mark.parametrize("mover", ["time-machine", "duly"])
@pytest.mark.parametrize("tick", [True, False])
@pytest.mark.parametrize("day", DAYS)
async def test_a_job_runs_when_the_time_of_time_machine_has_come(duly_app, duly, sent, day, tick, mover):
    with time_machine.travel(f"{day}+00:00", tick=tick) as traveller:
        move = traveller.shift if mover == "time-machine" else duly.clock.advance
        await after_an_hour(duly_app, duly, sent, move)


@freeze_time("2020-01-01")
def test_a_delay_is_exact_in_a_plain_test_with_a_decorator(duly_app, duly, sent):
    duly_app.sync.enqueue("mail.loop", {"name": "Ada"}, delay=HOUR)
    duly.assert_enqueued("mail.loop", delay=HOUR)
    duly.assert_enqueued("mail.loop", due_at=datetime(2020, 1, 1, 1, tzinfo=UTC))
    duly.clock.advance_to(datetime(2020, 1, 1, 1, tzinfo=UTC))
    assert datetime(2020, 1, 1, 1, tzinfo=UTC) == datetime.now(UTC)
    assert 1 == len(duly.sync.drain(raises=True))


def test_a_clock_that_steps_is_not_moved_by_being_read():
    clock = TestClock()
    with freeze_time("2020-01-01", auto_tick_seconds=60):
        assert 1 == len({clock.now for _ in range(3)})
        assert clock.now + HOUR == (clock.advance(HOUR), clock.now)[1]


def test_after_the_freeze_a_clock_is_back_where_it_stood():
    clock = TestClock()
    stood = clock.now_ms
    with freeze_time("2020-01-01"):
        clock.advance(hours=5)
        assert datetime(2020, 1, 1, 5, tzinfo=UTC) == clock.now
    assert stood == clock.now_ms


def test_a_clock_with_a_time_of_its_own_keeps_to_it():
    clock = TestClock(1_000)
    with freeze_time("2020-01-01"):
        assert 2_000 == clock.advance(seconds=1)
        assert datetime(2020, 1, 1, tzinfo=UTC) == datetime.now(UTC)


async def test_a_handler_may_wait_for_a_job_while_the_loop_stands_still(duly_app, duly):
    @duly_app.handler("inner")
    async def inner() -> str:
        return "done"

    @duly_app.handler("outer")
    async def outer() -> str:
        return await (await duly_app.enqueue(inner.job())).result(timeout=10)

    with freeze_time("2020-01-01"):
        await duly_app.enqueue(outer.job())
        assert {"done"} == {ran.result for ran in await duly.drain(raises=True)}


async def test_a_handler_that_sleeps_in_frozen_time_is_refused_with_what_to_do(duly_app, duly, monkeypatch):
    monkeypatch.setattr("duly.testing.draining.HANG_S", 0.2)

    @duly_app.handler("sleep")
    async def sleep() -> str:
        await asyncio.sleep(0.001)
        return "awake"

    with freeze_time("2020-01-01"):
        await duly_app.enqueue(sleep.job())
        with pytest.raises(UsageError, match=r"of sleep still wait: say freeze_time\(…, real_asyncio=True\)"):
            await duly.drain()
    with freeze_time("2020-01-01", real_asyncio=True):
        assert ["awake"] == [ran.result for ran in await duly.drain(raises=True)]
