"""
The heart and the watch over every loop: leases are extended whatever a handler does, and stalls are noticed.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis

from duly import Duly, StoreUnavailable
from duly.services import pruner, service
from duly.services.heart import Heart
from duly.services.service import Pulse, Watch, run_forever
from tests.eventually import eventually
from tests.services.conftest import becomes, tally, working
from tests.shards import fixed_of, one_id_on_each
from tests.store.kit import claim, enqueue

LEASE_S = 6  #: a beat may be four seconds late, and no lease is lost
LONG_S = 9  #: past the lease that a job began with, and past what one beat makes of it


class Neighbour(threading.Thread):
    """
    A worker on a loop of its own that recovers what others abandon.
    """

    def __init__(self, url: str, **settings) -> None:
        super().__init__(daemon=True)
        self.url, self.settings = url, settings
        self.stop, self.loop = asyncio.Event(), None

    def run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self.loop = asyncio.get_running_loop()
        app = Duly(self.url, **self.settings)

        @app.handler("elsewhere")
        async def elsewhere() -> None: ...

        async with app:
            await app.work(stop=self.stop)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.join(10)


async def test_a_handler_that_blocks_the_loop_past_its_lease_keeps_it(make_app, valkey, namespace):
    settings = {"lease": LEASE_S, "recover_scan": 0.05}
    app = make_app(**settings)
    runs = []

    @app.handler("block")
    async def block() -> str:
        runs.append(1)
        time.sleep(LONG_S)
        return "kept"

    await app.store()
    neighbour = Neighbour(valkey.url, namespace=namespace, **settings)
    neighbour.start()
    try:
        async with working(app):
            job = await app.enqueue(block.job())
            assert "kept" == await job.result(timeout=60)
    finally:
        neighbour.end()
    assert ([1], 1, 0) == (runs, (await job.get()).attempts, (await job.get()).crashes)


async def test_a_long_job_is_extended_again_and_again(make_app):
    app = make_app(lease=LEASE_S, recover_scan=0.05)

    @app.handler("long")
    async def long() -> str:
        await asyncio.sleep(LONG_S)
        return "kept"

    async with working(app):
        job = await app.enqueue(long.job())
        assert "kept" == await job.result(timeout=60)
    assert (1, 0) == (await tally(job))[1:]


async def test_a_beat_extends_what_is_held_and_names_what_is_lost(store, clock):
    held, gone = (one_id_on_each(store, "mail", prefix) for prefix in ("held", "lost"))
    for id_ in (*held, *gone):
        await enqueue(store, id_)
    leases = await claim(store)
    await store.cancel([lease.key for lease in leases if lease.key.id in gone])
    lost = []
    heart = Heart(
        lambda: store,
        worker="w1",
        about=lambda: b"{}",
        held=lambda: leases,
        lost=lost.extend,
        pulse=Pulse(),
        stall_s=60,
        stalled=lambda names: None,
        died=lambda error: None,
    )
    clock.advance(s=10)
    assert len(held) == await heart.run_once(store)
    assert gone == [lease.key.id for lease in lost]
    for id_ in held:
        score = await store.link.call("ZSCORE", fixed_of(store, "mail", id_)["leases"], f"mail/{id_}")
        assert clock.now_ms + store.lease_ms == int(score)


async def test_a_cancellation_whose_message_was_lost_is_noticed_by_the_heart(make_app, valkey):
    app = make_app(lease=3)
    stopped = []

    @app.handler("long")
    async def long() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(1)
            raise

    raw = redis.Redis(unix_socket_path=str(valkey.socket))
    async with working(app):
        job = await app.enqueue(long.job())
        await becomes(job, "running")
        raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await job.cancel()
        await eventually(lambda: bool(stopped), 30)
    raw.close()


async def test_a_heart_that_dies_takes_the_crew_down(app, monkeypatch):
    async def fail(self, store):
        raise ZeroDivisionError("no heart")

    monkeypatch.setattr(Heart, "run_once", fail)

    @app.handler("any")
    async def any_() -> None: ...

    with pytest.raises(ZeroDivisionError, match="no heart"):
        await asyncio.wait_for(app.work(), 10)


async def test_a_service_that_fails_for_no_fault_of_the_store_takes_the_crew_down(app, monkeypatch):
    async def fail(self):
        raise ZeroDivisionError("no pruner")

    monkeypatch.setattr(pruner.Pruner, "run_once", fail)

    @app.handler("any")
    async def any_() -> None: ...

    with pytest.raises(ZeroDivisionError, match="no pruner"):
        await asyncio.wait_for(app.work(), 10)


async def test_a_stalled_loop_is_noticed_while_it_stalls(make_app):
    app = make_app(block=0.1, timer_scan=0.1, recover_scan=0.1, stall=3, lease=1.5)
    told: list[str] = []

    @app.handler("block")
    async def block() -> list[str]:
        # The loop stands still until somebody else has said so.
        deadline = time.monotonic() + 30
        while not {"worker", "timer 0"} <= set(told) and time.monotonic() < deadline:
            time.sleep(0.02)
        return list(told)

    async with working(app, stalled=told.extend):
        # Waiting for nothing to do is no stall, however long.
        await stay_idle(app, 4, told)
        assert [] == told
        seen = await (await app.enqueue(block.job())).result(timeout=60)
    assert {"worker", "timer 0"} <= set(seen)


async def stay_idle(app: Duly, seconds: float, told: list[str]) -> None:
    """
    Do nothing for a while; begin anew where this process or the server stood still, for that is a stall.
    """
    link = (await app.store()).link
    before = time.monotonic()
    begins = before
    while before < begins + seconds:
        await asyncio.sleep(0.05)
        await link.call("PING")
        now = time.monotonic()
        if now - before > 1:
            begins = now + 1  # by then, who has to say something about it has said it
        if now < begins:
            told.clear()
        before = now


async def test_a_pulse_names_the_loops_that_made_no_progress(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(service.time, "monotonic", lambda: now[0])
    pulse = Pulse()
    assert ([], 0) == (pulse.stalled(1), pulse.age_s)
    pulse.beat("a")
    now[0] += 5
    pulse.beat("b")
    assert (["a"], 5) == (pulse.stalled(3), pulse.age_s)
    pulse.forget("a")
    assert [] == pulse.stalled(3)


async def test_a_process_that_was_suspended_is_not_stuck(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(service.time, "monotonic", lambda: now[0])
    pulse = Pulse()
    pulse.beat("a")
    watch = Watch(pulse, 60, 5)
    now[0] += 70  # nobody ran
    assert [] == watch.stalled()
    for _ in range(11):
        now[0] += 5
        assert [] == watch.stalled()
    now[0] += 5  # for as long as it takes to be stuck, it had its chance
    assert ["a"] == watch.stalled()


class Fickle:
    """
    A service that does what it is told to, run by run.
    """

    every_s = 0.0

    def __init__(self, *script) -> None:
        self.script = list(script)
        self.pauses: list[float] = []

    async def run_once(self) -> int:
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


async def test_a_loop_survives_an_unavailable_store_with_growing_pauses(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(service.asyncio, "sleep", sleep)
    away = StoreUnavailable("away")
    fickle = Fickle(*([away] * 8), 1, away, KeyError("the end"))
    pulse = Pulse()
    with pytest.raises(KeyError):
        await run_forever(fickle, pulse, "fickle")
    for most_s, slept_s in zip([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2], slept[:8], strict=True):
        assert 0.5 * most_s <= slept_s <= most_s
    assert slept[9] <= 0.05, "a success begins anew"
    assert [] == pulse.stalled(0), "who ended is not watched"
