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
from duly.store import Look, Store, Want
from tests.eventually import eventually
from tests.services.conftest import LAZY, working
from tests.shards import one_id_on_each
from tests.store.kit import enqueue, order

of_one = pytest.mark.one_shard("a timer is that of one shard")

SOON_S = 60  #: far from five minutes, and no busy machine takes so long; how soon it is, `duly bench` tells


@pytest.fixture
async def live(link, namespace, shards) -> Store:
    """
    A store on the server's own clock.
    """
    await create(link, namespace, shards)
    return Store(link, namespace=namespace, shards=shards)


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
                wakes = [keys.wake("tick") for keys in store.keys]
                stolen.append(await link.call("BLPOP", *wakes, 300, block_s=300))
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


@pytest.mark.parametrize("delay", [0, 0.3], ids=["at once", "later"])
async def test_jobs_of_every_shard_start_without_polling(make_app, delay):
    app, sender = make_app(**LAZY), make_app()
    note_starts(app)
    ids = one_id_on_each(await sender.store(), "tick")
    async with working(app):
        await (await sender.enqueue("tick", {})).result(timeout=SOON_S)
        for id_ in ids:
            await (await sender.enqueue("tick", {}, id=id_, delay=delay)).result(timeout=SOON_S)


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


@of_one
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


@of_one
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


@of_one
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


@of_one
async def test_whoever_has_no_place_still_scans(live):
    for name in "abc":
        await timer(live, name)[0].promote()
    last, outlook = timer(live, "d", scan_s=0.8)
    began = time.monotonic()
    await last.promote()
    assert 3 == outlook.rank
    # It was not told of the job.
    await enqueue(live, "a", delay_ms=50)
    while not await last.run_once():
        pass
    assert 0.9 < time.monotonic() - began < SOON_S


@of_one
async def test_whoever_has_no_place_looks_after_those_who_have_one(live):
    for name in "abc":
        await timer(live, name)[0].promote()
    last, outlook = timer(live, "d", scan_s=300)
    await last.promote()
    assert 3 == outlook.rank
    due_ms = (await enqueue(live, "a", delay_ms=50)).due_ms
    outlook.note_due(due_ms)
    while not await last.run_once():
        pass
    assert {JobState.ready: 1} == await _counts(live)
    # The others would have promoted it within two steps.
    assert outlook.server_ms - due_ms >= 2 * 20


@of_one
async def test_a_check_is_seen_however_many_are_told_of_after_it(live):
    _, outlook = timer(live, "a")
    outlook.note(Look(1_000, 0, None, None, 1, 1, ()), time.monotonic())
    outlook.note_check(1_020)
    outlook.note_check(1_070)
    assert outlook.check_in_s() <= 0.02
    while outlook.check_in_s() > 0:
        await asyncio.sleep(0.001)
    outlook.checked()
    # What was made ready since then is seen at the next time.
    assert 0.02 < outlook.check_in_s() <= 0.05


@of_one
@pytest.mark.parametrize(("check_ms", "at_most_s"), [(900, 0), (1_050, 0.05), (3_600_000, 0.05)])
async def test_a_check_that_is_told_late_or_by_another_clock_is_due_soon(live, check_ms, at_most_s):
    _, outlook = timer(live, "a")
    outlook.note(Look(1_000, 0, None, None, 0, 1, ()), time.monotonic())
    outlook.note_check(check_ms)
    assert outlook.check_in_s() <= at_most_s


@of_one
@pytest.mark.parametrize("rank", [0, 3])
async def test_a_check_where_nothing_is_ready_costs_one_read(live, rank, monkeypatch):
    claims = []
    mine, outlook = timer(live, "a", claim=lambda: not claims.append(1), topics=lambda: ["mail"])
    outlook.note(Look(1_000, 0, None, None, rank, 1, ()), time.monotonic())
    outlook.note_check(1_000)
    calls = []
    call = live.link.call

    async def noted(*words, **options):
        calls.append(words[0])
        return await call(*words, **options)

    monkeypatch.setattr(live.link, "call", noted)
    while outlook.check_in_s() is not None:
        await mine.run_once()
    assert ["EXISTS"] == calls
    assert [] == claims


@of_one
async def test_one_without_a_rank_that_claimed_meanwhile_asks_nothing(live, monkeypatch):
    mine, outlook = timer(live, "a", claim=lambda: True, topics=lambda: ["mail"])
    outlook.note(Look(1_000, 0, None, None, 3, 3, ()), time.monotonic())
    outlook.note_check(1_000)
    await asyncio.sleep(0)
    outlook.note(Look(1_001, 0, None, None, 3, 3, ()), time.monotonic())

    async def never(*words, **options):
        raise AssertionError(words)

    monkeypatch.setattr(live.link, "call", never)
    while outlook.check_in_s() is not None:
        await mine.run_once()


@of_one
async def test_one_without_a_rank_claims_what_is_ready_and_leaves_what_is_for_others(live):
    claims = []
    for topic, expected in (("other", 0), ("mail", 1)):
        mine, outlook = timer(live, "a", claim=lambda: not claims.append(1), topics=lambda: ["mail"])
        await enqueue(live, f"{topic}-1", topic)
        outlook.note(Look(1_000, 0, None, None, 3, 3, ()), time.monotonic())
        outlook.note_check(1_000)
        while outlook.check_in_s() is not None:
            await mine.run_once()
        assert expected == len(claims)


@of_one
async def test_a_wake_up_that_nobody_followed_goes_to_all_that_wait(live):
    wake = live.keys[0].wake("mail")
    for number in range(5):
        await live.claim(0, [Want("mail", 10, 60_000)], worker=f"w{number}", wait_s=60)
    await enqueue(live, "a", "mail")
    # The one token goes to a worker that is dead.
    assert b"1" == await live.link.call("LPOP", wake)
    assert ("mail",) == tuple((await live.promote(0, check=True)).rewoken)
    assert 5 == await live.link.call("LLEN", wake)


@of_one
async def test_what_is_due_is_promoted_past_a_worker_that_stays_full(live):
    mine, outlook = timer(live, "a", claim=lambda: True)
    await mine.promote()
    outlook.note_due((await enqueue(live, "a", delay_ms=1)).due_ms)
    began = time.monotonic()
    while not await mine.run_once():
        pass
    assert ROOM_S <= time.monotonic() - began
    assert {JobState.ready: 1} == await _counts(live)


@of_one
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


@of_one
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


@of_one
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


async def test_a_bell_hears_of_every_shard(live):
    outlooks = [Outlook() for _ in range(live.shards)]
    bell = TimerBell(live, outlooks, listen_s=0.05)
    for shard, outlook in enumerate(outlooks):
        # As the timer of the shard has seen it: nothing is due there.
        outlook.note(await live.promote(shard, timer="a"), time.monotonic())
        assert None is outlook.due_in_s()
    for id_ in one_id_on_each(live, "mail"):
        await enqueue(live, id_, delay_ms=5_000)

    async def all_know() -> None:
        await bell.run_once()
        assert all(outlook.due_in_s() is not None and outlook.due_in_s() < 6 for outlook in outlooks)

    await eventually(all_know, 30)


@of_one
async def test_a_bell_hears_of_what_came_before_it_listened(live):
    sleeper, outlook = timer(live, "a")
    await sleeper.promote()
    await enqueue(live, "near", delay_ms=5_000)
    await TimerBell(live, [outlook], listen_s=0.05).run_once()
    assert outlook.due_in_s() < 6


@of_one
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


@of_one
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
