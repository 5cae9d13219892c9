"""
A server that goes away and comes back; and calls that leave together.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from duly import OutcomeUnknown, StoreUnavailable
from duly.namespace import inspect
from duly.store import Store
from tests.eventually import eventually
from tests.lostclaims import lose_a_claim
from tests.services.conftest import becomes, tally, working


async def test_everything_goes_on_when_a_killed_server_comes_back(own_server, make_app):
    app = make_app(own_server.url, lease=4, recover_scan=0.1)
    (await app.store()).link.patience_s = 60  # for who sends and who waits; the worker has a link of its own
    gate, runs = asyncio.Event(), []

    @app.handler("held")
    async def held() -> str:
        runs.append("held")
        await gate.wait()
        return "kept"

    @app.handler("quick")
    async def quick(number: int) -> int:
        runs.append(number)
        return number

    async with working(app):
        running = await app.enqueue(held.job())
        later = await app.enqueue(quick.job(1), delay=1.5)
        await becomes(running, "running")
        waiting = asyncio.create_task(running.result(timeout=60))
        own_server.kill()
        # Longer than a lease, and the outcome falls due meanwhile.
        sending = asyncio.create_task(app.enqueue(quick.job(2)))
        await asyncio.sleep(2)
        gate.set()
        await asyncio.sleep(3)
        own_server.start()
        assert 2 == await (await sending).result(timeout=30)
        assert 1 == await later.result(timeout=30)
        assert "kept" == await waiting
    assert ["held"] == [run for run in runs if run == "held"]
    assert [("succeeded", 1, 0)] * 2 == [await tally(job) for job in (running, later)]


async def test_a_server_that_stands_still_for_longer_than_a_lease_counts_no_crash(own_server, make_app):
    apps = [make_app(own_server.url, lease=3, recover_scan=0.1, timer_scan=0.5) for _ in range(2)]
    gate, runs = asyncio.Event(), []
    for app in apps:

        @app.handler("held")
        async def held(number: int) -> int:
            runs.append(number)
            await gate.wait()
            return number

    app = apps[0]
    store = await app.store()
    while (await inspect(store.link)).uptime_s <= 5:
        await asyncio.sleep(0.1)  # right after its start no crash is counted anyway
    async with working(apps[0], concurrency=5), working(apps[1], concurrency=5):
        jobs = [await app.enqueue(held.job(number)) for number in range(10)]
        for job in jobs:
            await becomes(job, "running")
        own_server.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(2 * 3 + 1)
        finally:
            own_server.process.send_signal(signal.SIGCONT)
        # As long as it may be held against somebody: the hold and the lease after it.
        await asyncio.sleep(2 * 3)
        gate.set()
        store.link.patience_s = 30
        assert list(range(10)) == [await job.result(timeout=60) for job in jobs]
    assert [("succeeded", 1, 0)] * 10 == [await tally(job) for job in jobs]
    assert list(range(10)) == sorted(runs), "each kept its lease"


@pytest.mark.parametrize("slots", [1, 10])
async def test_a_server_that_stands_still_for_longer_than_the_patience_delays_jobs_no_further(
    own_server, make_app, slots
):
    app = make_app(own_server.url, lease=60, socket_timeout=1)
    link = (await app.store()).link

    @app.handler("quick")
    async def quick() -> str:
        return "done"

    async with working(app, concurrency=slots):
        await (await app.enqueue(quick.job())).result(timeout=10)
        # Claims for them are sent while it stands still, given up, and carried out when it goes on.
        jobs = [await app.enqueue(quick.job(), delay=0.3) for _ in range(6)]
        own_server.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(3)
        finally:
            own_server.process.send_signal(signal.SIGCONT)
        link.patience_s = 30
        # Far less than the lease that a claim without an answer took.
        assert ["done"] * 6 == [await job.result(timeout=20) for job in jobs]
    assert [("succeeded", 1, 0)] * 6 == [await tally(job) for job in jobs]


@pytest.mark.parametrize("silent", [0, 3], ids=["at once", "as soon as there is an answer"])
async def test_a_worker_that_ends_gives_back_what_an_unanswered_claim_took(
    own_server, make_app, monkeypatch, silent
):
    monkeypatch.setattr("duly.services.worker.SETTLE_S", 0.0)
    app = make_app(own_server.url, lease=60, drain_grace=20)
    stop = asyncio.Event()

    @app.handler("quick")
    async def quick() -> None:
        pass

    job = await app.enqueue(quick.job())
    lost = lose_a_claim(monkeypatch, silent=silent, then=stop.set)
    await asyncio.wait_for(app.work(stop=stop), 20)
    assert lost.is_set()
    assert ("ready", 0, 0) == await tally(job)


async def test_a_worker_that_waits_in_vain_for_the_answer_to_a_claim_says_so_when_it_ends(
    own_server, make_app, monkeypatch, caplog
):
    monkeypatch.setattr("duly.services.worker.SETTLE_S", 0.0)
    app = make_app(own_server.url, lease=60, drain_grace=0.1)
    stop = asyncio.Event()

    @app.handler("quick")
    async def quick() -> None:
        pass

    await app.enqueue(quick.job())
    lose_a_claim(monkeypatch, silent=1_000, then=stop.set)
    await asyncio.wait_for(app.work(stop=stop), 20)
    assert "a claim had no answer until the end; what it took is left to its lease" in caplog.messages


async def test_a_worker_that_ends_while_the_server_is_away_leaves_nothing_behind(
    own_server, make_app, monkeypatch
):
    monkeypatch.setattr("duly.services.worker.SETTLE_S", 0.3)
    app = make_app(own_server.url, drain_grace=0.2)
    gate, stop = asyncio.Event(), asyncio.Event()

    @app.handler("held")
    async def held(fail: bool) -> None:
        await gate.wait()
        if fail:
            raise RuntimeError("an outcome that cannot be stored either")

    jobs = [await app.enqueue(held.job(fail)) for fail in (False, True)]
    before = asyncio.all_tasks()
    work = asyncio.create_task(app.work(stop=stop))
    for job in jobs:
        await becomes(job, "running")
    own_server.kill()
    gate.set()
    stop.set()
    await asyncio.wait_for(work, 20)
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_an_idle_worker_survives_a_restart_and_works_on(own_server, make_app):
    app = make_app(own_server.url)

    @app.handler("quick")
    async def quick() -> str:
        return "done"

    async with working(app):
        assert "done" == await (await app.enqueue(quick.job())).result(timeout=10)
        for _ in range(2):
            own_server.kill()
            own_server.start()
            assert "done" == await (await app.enqueue(quick.job(), delay=0.05)).result(timeout=20)


async def test_without_a_server_a_sender_is_told_whether_anything_may_have_changed(own_server, make_app):
    app = make_app(own_server.url)
    (await app.store()).link.patience_s = 0.2
    await app.enqueue("quick", {}, id="before")
    own_server.kill()
    # Sent over a connection that was there: for all that is known it may have arrived.
    with pytest.raises(OutcomeUnknown):
        await app.enqueue("quick", {}, id="a")
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await app.enqueue("quick", {}, id="a")
    own_server.start()
    assert (await app.enqueue("quick", {}, id="a")).created


async def test_an_emptied_server_is_made_usable_again(own_server, make_app):
    app = make_app(own_server.url, block=0.1)

    @app.handler("quick")
    async def quick() -> str:
        return "done"

    async with working(app):
        await (await app.enqueue(quick.job())).result(timeout=10)
        await (await app.store()).link.call("FLUSHALL")
        assert "done" == await (await app.enqueue(quick.job())).result(timeout=10)
        assert "done" == await (await app.enqueue(quick.job(), delay=0.1)).result(timeout=10)


async def test_calls_that_are_under_way_together_share_script_calls(app, monkeypatch):
    calls: dict[str, int] = {}
    run = Store._run

    async def count(self, name, *args, **options):
        calls[name] = calls.get(name, 0) + 1
        return await run(self, name, *args, **options)

    monkeypatch.setattr(Store, "_run", count)

    @app.handler("quick")
    async def quick() -> None: ...

    await app.store()
    jobs = await asyncio.gather(*(app.enqueue(quick.job()) for _ in range(500)))
    assert 500 == len({job.id for job in jobs})
    assert calls["enqueue"] <= 10
    async with working(app, concurrency=100):

        async def ended() -> bool:
            return 500 == (await (await app.views()).stats()).topics[0].counts["succeeded"]

        await eventually(ended)
    assert calls["ack"] <= 100


async def test_a_caller_that_gives_up_leaves_the_group_and_the_others_do_not_suffer(app):
    await app.store()
    tasks = [asyncio.create_task(app.enqueue("quick", {}, id=f"j{number}")) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
    assert all(answer.created for answer in answers[1::2])
