"""
The timer: exact wake-up, woken by an earlier due time, relieved by stand-bys, with a scan below it all.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from duly.connection import Link
from duly.job import JobState
from duly.namespace import create
from duly.services.outlook import Outlook
from duly.services.timer import ROOM_S, STAND_BY_S, STAYS_S, Timer, TimerBell
from duly.store import Look, Store
from tests.eventually import eventually
from tests.services.conftest import LAZY, working
from tests.store.kit import enqueue, order

SOON_S = 60  #: far from five minutes, and no busy machine takes so long; how soon it is, `duly bench` tells


@pytest.fixture
async def live(link, namespace) -> Store:
    """
    A store on the server's own clock.
    """
    await create(link, namespace, 1)
    return Store(link, namespace=namespace)


def timer(
    store: Store, name: str, *, role: str = "auto", scan_s: float = 300, **options: Any
) -> tuple[Timer, Outlook]:
    outlook = Outlook()
    return Timer(store, 0, outlook, name=name, role=role, scan_s=scan_s, **options), outlook


def note_starts(app) -> list[float]:
    late: list[float] = []

    @app.handler("tick")
    async def tick(due_ms: float = 0) -> None:
        from duly import current_job

        late.append(time.time() - current_job().due_at.timestamp())

    return late


async def test_jobs_start_when_they_are_due_without_polling_and_never_early(make_app):
    app = make_app(**LAZY)
    late = note_starts(app)
    async with working(app):
        jobs = [await app.enqueue("tick", {}, delay=0.2 + 0.013 * number) for number in range(40)]
        for job in jobs:
            await job.result(timeout=SOON_S)
    assert 0 <= min(late)
    assert max(late) < SOON_S
    told = [(await job.get()).lateness_ms for job in jobs]
    assert max(told) < SOON_S * 1000, "and the store was told"


async def test_a_wake_up_that_went_to_a_dead_worker_costs_no_scan(make_app):
    """
    Whoever takes a token and dies before it claims leaves a ready job behind and nobody awake.
    """
    apps = [make_app(**LAZY) for _ in range(2)]
    for app in apps:
        note_starts(app)
    store = await apps[0].store()
    stolen: list[object] = []

    async def steal() -> None:
        link = Link(store.link.url)
        try:
            while True:
                stolen.append(await link.call("BLPOP", store.keys[0].wake("tick"), 300, block_s=300))
        finally:
            await link.aclose()

    # Who waits the longest is woken first: these wait before the workers do.
    thieves = [asyncio.create_task(steal()) for _ in range(3)]
    call = store.link.call

    async def all_wait() -> None:
        assert (await call("CLIENT", "LIST")).count(b" cmd=blpop ") >= len(thieves)

    async def all_work() -> None:
        assert await call("HLEN", store.keys[0].fixed["workers"]) == len(apps)

    await eventually(all_wait)
    async with working(apps[0]), working(apps[1]):
        await eventually(all_work)
        for _ in range(5):
            await (await apps[0].enqueue("tick", {})).result(timeout=SOON_S)
    assert stolen, "some wake-up must have been stolen"
    for thief in thieves:
        thief.cancel()
    await asyncio.gather(*thieves, return_exceptions=True)


async def test_an_earlier_job_of_another_process_wakes_the_sleeper(make_app):
    app, sender = make_app(**LAZY), make_app()
    late = note_starts(app)
    async with working(app):
        await sender.enqueue("tick", {}, delay=600)
        for _ in range(5):
            await (await sender.enqueue("tick", {}, delay=0.1)).result(timeout=SOON_S)
    assert 5 == len(late)
    assert 0 <= min(late)
    assert max(late) < SOON_S


async def test_a_moved_job_wakes_the_sleeper(make_app):
    app, sender = make_app(**LAZY), make_app()
    late = note_starts(app)
    async with working(app):
        # The first may be moved before the worker has looked at all.
        for _ in range(5):
            job = await sender.enqueue("tick", {}, delay=600)
            await job.reschedule(delay=0.1)
            await job.result(timeout=SOON_S)
    assert 0 <= min(late)
    assert max(late) < SOON_S


async def test_one_leads_two_stand_by_and_the_rest_only_scan(live):
    timers = [timer(live, name) for name in "abcd"]
    for each, _ in timers:
        await each.promote()
    assert [0, 1, 2, 3] == [outlook.rank for _, outlook in timers]
    follower, outlook = timer(live, "f", role="follower")
    await follower.promote()
    assert 3 == outlook.rank
    leader, outlook = timer(live, "l", role="leader")
    await leader.promote()
    assert 0 == outlook.rank, "who is pinned to lead takes the first place"


@pytest.mark.parametrize("rank", [0, 1, 2])
async def test_a_stand_by_looks_a_little_after_the_due_time(live, rank):
    timers = [timer(live, name) for name in "abc"]
    for each, _ in timers:
        await each.promote()
    mine, outlook = timers[rank]
    outlook.note_due((await enqueue(live, "a", delay_ms=200)).due_ms)
    due_s = time.monotonic() + outlook.due_in_s()
    # Whoever comes before has died: nobody else promotes.
    while not await mine.run_once():
        pass
    late = time.monotonic() - due_s
    assert STAND_BY_S * rank - 0.005 <= late < STAND_BY_S * rank + SOON_S


async def test_who_leads_knows_of_who_only_follows_and_keeps_nothing_for_itself(live):
    asked: list[int] = []

    def claim() -> bool:
        asked.append(1)
        return True

    mine, outlook = timer(live, "a", role="leader", claim=claim)
    await timer(live, "f", role="follower")[0].promote()
    await mine.promote()
    assert (0, 1) == (outlook.rank, outlook.peers)
    outlook.note_due((await enqueue(live, "a", delay_ms=1)).due_ms)
    # This worker is full, and that one has nothing to do: it is woken now, not when this one had its chance.
    while not await mine.run_once():
        pass
    assert [] == asked
    assert {JobState.ready: 1} == await _counts(live)


async def test_whoever_has_no_place_still_scans(live):
    for name in "abc":
        await timer(live, name)[0].promote()
    last, outlook = timer(live, "d", scan_s=0.8)
    began = time.monotonic()
    await last.promote()
    assert 3 == outlook.rank
    # It may know when, as the bell tells all: those with a place look then.
    outlook.note_due((await enqueue(live, "a", delay_ms=50)).due_ms)
    while not await last.run_once():
        pass
    assert 0.9 < time.monotonic() - began < SOON_S


async def test_what_is_due_is_promoted_past_a_worker_that_stays_full(live):
    mine, outlook = timer(live, "a", claim=lambda: True)
    await mine.promote()
    outlook.note_due((await enqueue(live, "a", delay_ms=1)).due_ms)
    began = time.monotonic()
    while not await mine.run_once():
        pass
    assert ROOM_S <= time.monotonic() - began
    assert {JobState.ready: 1} == await _counts(live)


async def test_what_is_due_is_left_to_a_worker_that_soon_has_room(live):
    asked = asyncio.Event()
    mine, outlook = timer(live, "a", claim=lambda: asked.set() or True)
    await mine.promote()
    outlook.note_due((await enqueue(live, "a", delay_ms=1)).due_ms)
    looking = asyncio.create_task(mine.run_once())
    await asked.wait()
    # As the answer of its claim does.
    outlook.note(Look(0, 0, None, None, 0, 0, ()), time.monotonic())
    assert 0 == await looking
    assert {JobState.scheduled: 1} == await _counts(live)


async def test_a_worker_that_has_passed_a_shard_by_comes_back_to_what_is_due_there(make_app, monkeypatch):
    app = make_app(**LAZY, shards=2)
    note_starts(app)
    await app.queue()
    crew = app.crew(app.settings)
    claim, asked = crew.store.claim, []

    async def claim_and_fall_due(shard: int, *args: Any, **options: Any) -> Any:
        claimed = await claim(shard, *args, **options)
        asked.append(shard)
        if len(asked) == 2:
            # As the timer of the first shard does, while the second is asked.
            assert crew.worker.claim_now(asked[0])
        return claimed

    monkeypatch.setattr(crew.store, "claim", claim_and_fall_due)
    try:
        await asyncio.wait_for(crew.worker.run_once(), 10)
    finally:
        await crew.worker.give_back_all()
        await crew.store.link.aclose()
    assert 2 == len(asked)


async def test_what_has_been_due_for_seconds_is_promoted_whoever_claims(live):
    mine, outlook = timer(live, "a", claim=lambda: pytest.fail("the worker has had its time"))
    placed = await enqueue(live, "a", delay_ms=1)

    async def due() -> bool:
        seconds, micros = map(int, await live.link.call("TIME"))
        return 1000 * seconds + micros // 1000 >= placed.due_ms

    await eventually(due)
    now_ms = placed.due_ms + 1000 * STAYS_S
    outlook.note(Look(now_ms, 0, placed.due_ms, None, 0, 0, ()), time.monotonic())
    assert 1 == await mine.run_once()
    assert {JobState.ready: 1} == await _counts(live)


async def test_a_bell_hears_of_an_earlier_due_time_also_between_two_readings(live):
    sleeper, outlook = timer(live, "a")
    await enqueue(live, "far", delay_ms=60_000)
    await sleeper.promote()
    bell = TimerBell(live, [outlook], listen_s=0.05)
    await bell.run_once()
    assert outlook.due_in_s() > 50
    # Nobody listens while this is sent.
    await enqueue(live, "near", delay_ms=5_000)
    await bell.run_once()
    assert outlook.due_in_s() < 6


async def test_a_bell_hears_of_what_came_before_it_listened(live):
    sleeper, outlook = timer(live, "a")
    await sleeper.promote()
    await enqueue(live, "near", delay_ms=5_000)
    await TimerBell(live, [outlook], listen_s=0.05).run_once()
    assert outlook.due_in_s() < 6


@pytest.mark.parametrize("first", [True, False], ids=["the first look", "a later look"])
async def test_an_answer_does_not_hide_what_was_heard_since_it_was_asked(live, first):
    sleeper, outlook = timer(live, "a")
    await enqueue(live, "far", delay_ms=60_000)
    if not first:
        await sleeper.promote()
    sent_s = time.monotonic()
    look = await live.promote(0, timer="a", role="auto")
    near = order("near", delay_ms=5_000)
    await live.enqueue(near)
    await TimerBell(live, [outlook], listen_s=0.05).run_once()
    outlook.note(look, sent_s)
    assert outlook.due_in_s() < 6
    # Who asks later knows more.
    await live.cancel([near.key])
    await sleeper.promote()
    assert outlook.due_in_s() > 50


async def test_promotion_goes_on_beyond_one_batch_and_names_topics_it_did_not_know(live):
    for number in range(450):
        await enqueue(live, f"j{number}", topic=f"topic{number % 90}", delay_ms=1)
    each, _ = timer(live, "a")

    async def promoted() -> bool:
        await each.promote()
        counts = await _counts(live)
        return counts == {JobState.ready: 450}

    await eventually(promoted)


async def _counts(store) -> dict[JobState, int]:
    from duly.views import Views

    found: dict[JobState, int] = {}
    for topic in (await Views(store).stats()).topics:
        for state, count in topic.counts.items():
            if count:
                found[JobState[state]] = found.get(JobState[state], 0) + count
    return found


async def test_a_process_that_only_follows_still_runs_what_is_due(make_app):
    app = make_app(**LAZY | {"timer_scan": 0.1}, role="follower")
    late = note_starts(app)
    async with working(app):
        await (await app.enqueue("tick", {}, delay=0.15)).result(timeout=SOON_S)
    assert 0 <= late[0] < SOON_S


async def test_an_outlook_wakes_who_waits_for_it():
    outlook = Outlook()
    waiting = asyncio.create_task(outlook.changed(5))
    await asyncio.sleep(0)
    outlook.note_due(1)
    assert await waiting
    assert not await outlook.changed(0.01)
