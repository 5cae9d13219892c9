"""
Fairness: no shard, topic or lane starves, herds are shared out, and nothing waits while a slot is free.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from duly import current_job
from duly.connection import Link
from duly.job import JobKey, Lane, shard_of
from duly.services import backlog
from duly.services.backlog import LISTENED, NAMED
from duly.services.outlook import STANDS_BY
from duly.store import Store, Want
from tests.eventually import eventually
from tests.services.conftest import LAZY, working
from tests.shards import claim_all, ids_on, on_all
from tests.store.kit import order

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 800
WEIGHTS = {"high": 16, "normal": 4, "low": 1}


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize(("shards", "topics"), [(1, 2), (2, 2), (4, 2), (16, 2), (2, 4)])
async def test_no_topic_of_any_shard_starves(make_app, shards, topics, concurrency):
    app = make_app(shards=shards, block=0.05)
    runs: Counter[tuple[int, str]] = Counter()
    enough = asyncio.Event()
    names = [f"t{number}" for number in range(topics)]
    pairs = shards * topics

    def add(topic: str) -> None:
        @app.handler(topic)
        async def run() -> None:
            from duly import current_job

            runs[shard_of(topic, current_job().id, shards), topic] += 1
            if runs.total() >= RUNS:
                enough.set()
            await asyncio.sleep(0)

    for topic in names:
        add(topic)
    store = await app.store()
    # None of them runs dry: each has as many jobs as are run of all together.
    await store.enqueue_many(
        [order(str(number), topic) for topic in names for number in range(RUNS * shards)]
    )
    async with working(app, concurrency=concurrency):
        await asyncio.wait_for(enough.wait(), 60)
    fair = runs.total() / pairs
    assert pairs == len(runs), "some got nothing at all"
    assert min(runs.values()) >= fair / 2 - 1, runs


@pytest.mark.parametrize("busy", [("high", "low", "normal"), ("normal", "low"), ("high", "low")])
async def test_each_lane_has_its_weight(make_app, busy):
    app = make_app(block=0.05)
    runs: Counter[str] = Counter()
    enough = asyncio.Event()

    @app.handler("mixed")
    async def mixed(lane: str) -> None:
        runs[lane] += 1
        if runs.total() >= 2 * RUNS:
            enough.set()

    for lane in busy:
        await app.enqueue_many([mixed.job(lane).options(priority=lane) for _ in range(2 * RUNS)])
    async with working(app, concurrency=1):
        await asyncio.wait_for(enough.wait(), 60)
    total = sum(WEIGHTS[lane] for lane in busy)
    for lane in busy:
        assert runs[lane] >= runs.total() * WEIGHTS[lane] / total / 2, runs


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("shards", [2, 4])
async def test_no_lane_of_any_topic_of_any_shard_starves(make_app, shards, concurrency):
    app = make_app(shards=shards, block=0.05)
    runs: Counter[tuple[str, str, str]] = Counter()
    enough = asyncio.Event()
    total, topics = sum(WEIGHTS.values()), ["t0", "t1"]
    # So many that the least likely lane of each pair runs some sixty times: half of that is no accident.
    least = 60
    expected = {lane: least * weight for lane, weight in WEIGHTS.items()}
    upto = shards * len(topics) * sum(expected.values())

    async def run() -> None:
        job = current_job()
        lane, shard, _ = job.id.split("-")
        runs[job.topic, lane, shard] += 1
        if runs.total() >= upto:
            enough.set()

    for topic in topics:
        app.handler(topic)(run)
    store = await app.store()
    # None of them runs dry.
    for topic in topics:
        for lane in WEIGHTS:
            for shard in range(shards):
                backlog = ids_on(store, topic, shard, 2 * expected[lane] + 100, f"{lane}-{shard}-")
                await store.enqueue_many([order(id_, topic, lane=Lane[lane]) for id_ in backlog])
    async with working(app, concurrency=concurrency):
        await asyncio.wait_for(enough.wait(), 120)
        seen = Counter(runs)
    for topic in topics:
        for lane, weight in WEIGHTS.items():
            for shard in range(shards):
                share = seen.total() / (shards * len(topics)) * weight / total
                assert seen[topic, lane, str(shard)] >= share / 2, (topic, lane, shard, seen)


@asynccontextmanager
async def workers(
    make_app, count: int, concurrency: int, got: list[list[float]], topics: int = 1, **settings
):
    """
    Workers that wait, as if each were in a process of its own, and what each of them ran.
    """
    async with AsyncExitStack() as stack:
        apps = [make_app(**settings) for _ in range(count)]
        for number, app in enumerate(apps):

            @app.handler("herd")
            async def herd(at: int, mine: list[float] = got[number]) -> None:
                mine.append(time.time())
                await asyncio.sleep(0.05)

            for other in range(1, topics):
                app.handler(f"other-{other}")(herd.fn)
            await stack.enter_async_context(working(app, concurrency=concurrency))
        await _all_wait(apps[0], count)
        yield apps


async def _all_wait(app, count: int) -> None:
    store = await app.store()
    name = "*" if len(app.handlers.topics()) > NAMED else "herd"

    async def registered() -> None:
        for told, running in await on_all(store, "topics", "HMGET", f"{name}:waiting", "herd:running"):
            assert 0 == int(running or 0)
            waiting = told or b""
            slots = [int.from_bytes(waiting[at + 16 : at + 18]) for at in range(0, len(waiting), 18)]
            assert count == len([free for free in slots if free])

    await eventually(registered, STARTS_S)


@pytest.mark.alone
@pytest.mark.parametrize("topics", [1, NAMED + 1], ids=["one topic", "many topics"])
@pytest.mark.parametrize("delay", [0, 0.2])
async def test_a_herd_is_shared_out_among_the_workers_that_wait(make_app, delay, topics):
    got: list[list[float]] = [[], [], []]
    shares: list[list[int]] = []
    rounds, enough = 0, 20
    async with workers(make_app, 3, 40, got, topics) as apps:
        while len(shares) < enough and rounds < 30 * enough:
            before = [len(mine) for mine in got]
            jobs = [("herd", {"at": 30 * rounds + at}) for at in range(30)]
            due_s = await _send(apps[0], jobs, delay)
            rounds += 1

            async def done(total=30 * rounds) -> None:
                assert total == sum(map(len, got))

            await eventually(done, 20)
            fresh = [mine[was:] for mine, was in zip(got, before, strict=True)]
            # What nobody takes at once is for everybody: where the machine was busy, a round shows nothing.
            if max(start for mine in fresh for start in mine) < due_s + 0.02:
                shares.append([len(mine) for mine in fresh])
            await _all_wait(apps[0], 3)
    print(f"{shares} in {rounds} rounds")
    assert enough == len(shares), f"of {rounds} rounds so few began in time to show anything"
    assert [] == [each for each in shares if max(each) > 20]
    assert len([each for each in shares if max(each) > 15]) <= enough / 10


async def _send(app, jobs, delay) -> float:
    store = await app.store()
    sent_s = time.time() + delay
    due_ms = int(time.time() * 1000 + delay * 1000) if delay else None
    orders = [
        order(f"{body['at']}", topic, b'{"at": %d}' % body["at"], due_ms=due_ms) for topic, body in jobs
    ]
    await store.enqueue_many(orders)
    return sent_s


async def test_the_part_of_a_worker_that_does_not_come_is_open_to_others(make_app):
    app = make_app(**LAZY)
    ran = []

    @app.handler("herd")
    async def herd(at: int) -> None:
        ran.append(at)

    store = await app.store()
    # It says that it waits, and never comes again.
    await claim_all(store, [Want("herd", 40, 60_000)], worker="dead", wait_s=60)
    async with working(app, concurrency=40):
        await _all_wait(app, 2)
        began_s = time.monotonic()
        await _send(app, [("herd", {"at": at}) for at in range(30)], 0)

        async def done() -> None:
            assert 30 == len(ran)

        # Everything else that could find them is minutes apart.
        await eventually(done, 30)
    print(f"all had begun after {time.monotonic() - began_s:.3f} s")


async def test_one_worker_alone_claims_all_there_is(make_app):
    app = make_app()
    store = await app.store()
    want = [Want("herd", 100, 60_000)]
    await claim_all(store, want, worker="w", wait_s=1.5)
    await _send(app, [("herd", {"at": at}) for at in range(100)], 0)
    assert 100 == len(await claim_all(store, want, worker="w", wait_s=1.5))


@pytest.mark.parametrize("delay", [0, 0.1])
@pytest.mark.parametrize(("shards", "topics"), [(1, NAMED + 1), (16, NAMED + 1), (LISTENED // 2, 3)])
async def test_a_worker_with_many_topics_or_shards_is_told_of_each_job(
    make_app, monkeypatch, shards, topics, delay
):
    # What it is not told, it never finds.
    monkeypatch.setattr(backlog, "SCAN_S", 3_600)
    ran: set[str] = set()
    app = make_app(shards=shards)

    async def run() -> None:
        ran.add(current_job().id)

    handlers = [app.handler(f"t{number}")(run) for number in range(topics)]
    async with working(app, concurrency=10):
        store = await app.store()
        metas = [keys.fixed["meta"] for keys in store.keys]

        async def all_listened_to() -> None:
            assert all([await store.link.call("HGET", meta, "broad") for meta in metas])

        await eventually(all_listened_to, 20)
        jobs = [
            (await app.enqueue(handlers[number % topics].job(), delay=delay)).id
            for number in range(3 * shards)
        ]
        await eventually(lambda: ran == set(jobs), 20)


async def test_a_shard_that_was_not_asked_for_long_is_asked_again(store, monkeypatch):
    monkeypatch.setattr(backlog, "ASK_S", 0.2)
    known = backlog.Backlog(store, lambda: ["a", "b"])
    everywhere = list(range(store.shards))
    assert everywhere == known.shards()
    for shard in everywhere:
        assert ["a", "b"] == known.choose(shard)
        known.note(shard, ["a", "b"], [], full=False)
    assert [] == known.shards()
    await eventually(lambda: everywhere == known.shards())


async def test_a_claim_that_few_topics_do_not_fill_is_followed_by_one_that_names_more(store):
    topics = [f"t{number}" for number in range(1_000)]
    known = backlog.Backlog(store, lambda: topics)
    known.add(0, topics)
    named = []
    for full in (False, False, False, True, True):
        chosen = known.choose(0)
        named.append(len(set(chosen)))
        known.note(0, chosen, chosen, full=full)
    assert [8, 16, NAMED, NAMED, 8] == named


async def test_a_worker_with_many_topics_asks_for_more_before_it_starts_what_it_has(make_app, monkeypatch):
    # Each topic has one job, so no claim is ever full; what says that there is more are the other topics.
    app = make_app()
    order: list[str] = []
    topics = [f"t{number}" for number in range(3 * NAMED)]

    async def run() -> None:
        order.append("ran")

    handlers = [app.handler(topic)(run) for topic in topics]
    async with app:
        await app.enqueue_many([handler.job() for handler in handlers])
        claim = Store.claim

        async def noted(*args, **options):
            order.append("claimed")
            return await claim(*args, **options)

        monkeypatch.setattr(Store, "claim", noted)
        async with working(app, concurrency=len(topics)):
            await eventually(lambda: len(topics) == order.count("ran"), 20)
    assert 2 <= order[: order.index("ran")].count("claimed")


async def test_a_worker_with_thousands_of_topics_runs_them_all(make_app):
    app = make_app(block=0.2)
    ran: set[str] = set()

    async def run() -> None:
        from duly import current_job

        ran.add(current_job().topic)

    names = [f"topic-{number}" for number in range(5_000)]
    for topic in names:
        app.handler(topic)(run)
    # Of all parts of them, the first and the last too, and some of which nothing is known beforehand.
    some = list(dict.fromkeys([*names[::10], names[-1], *random.Random(7).sample(names, 50)]))
    async with working(app, concurrency=50):
        for topic in some[:100]:
            await app.enqueue(topic, {})
        for topic in some[100:]:
            await app.enqueue(topic, {}, delay=0.3)

        async def done() -> None:
            assert set(some) == ran

        await eventually(done, 60)


#: That promote or claim between the due time of a job and its start: some are under way, some go beside it.
CALLS_BEFORE = 50

HERD = 60_000  #: so many that they are on their way when the first urgent job is due


@pytest.mark.parametrize("foreign", [1, 1000])
async def test_a_due_herd_of_other_topics_makes_no_job_late(make_app, monkeypatch, foreign):
    app = make_app()

    @app.handler("urgent")
    async def urgent() -> None:
        pass

    store = await app.store()
    calls: list[tuple[float, float, str]] = []
    run = Link.run

    async def counted(link, name, *args, **options):
        began_ms = time.time() * 1000
        try:
            return await run(link, name, *args, **options)
        finally:
            calls.append((began_ms, time.time() * 1000, name))

    monkeypatch.setattr(Link, "run", counted)
    due_ms = int(time.time() * 1000) + 2000
    herd = [order(str(number), f"herd-{number % foreign}", due_ms=due_ms) for number in range(HERD)]
    await store.enqueue_many(herd)
    async with working(app):
        await asyncio.sleep(max(0, due_ms / 1000 - time.time()))
        late, moved, between = [], [], []
        for _ in range(10):
            job = await app.enqueue(urgent.job(), delay=0.02)
            await job.result(timeout=30)
            document = await job.get()
            late.append(document.lateness_ms)
            moved.append(await _moved(store, foreign))
            # The server's clock is this machine's, too.
            its_due_ms = document.due_at.timestamp() * 1000
            its_start_ms = its_due_ms + document.lateness_ms
            between.append(
                sum(
                    name in {"promote", "claim"} and its_due_ms <= began and ended < its_start_ms
                    for began, ended, name in calls
                )
            )
    # How late they are depends on the machine, and `duly bench` tells.  How many calls
    # go before one does not: all of the herd takes nine hundred.
    print(f"beside a herd of {foreign} topics: {late} ms late, {moved} of it moved, {between} calls before")
    assert max(between) <= CALLS_BEFORE
    assert moved[0] < HERD


async def _moved(store: Store, topics: int) -> int:
    """
    How many jobs of the herd wait for their time no longer.
    """
    fields = [f"herd-{number}:scheduled" for number in range(topics)]
    told = await on_all(store, "topics", "HMGET", *fields)
    return 20_000 - sum(int(number or 0) for shard in told for number in shard)


KILLED = """
import asyncio, sys
from duly import Duly

app = Duly(sys.argv[1], namespace=sys.argv[2], block=float(sys.argv[3]), timer_scan=60, stall=600)

@app.handler("herd")
async def herd(at: int) -> None:
    pass

asyncio.run(app.work(concurrency=10))
"""
STARTS_S = 60.0  #: how long a process may take until its worker waits: on a busy machine more than ten
WAIT_MS = 100  #: no ready job waits longer while a slot for it is free
HOPS = 4  #: on the way of such a job: a sleep, a read, a claim, the start of its handler


def _start_victim(url: str, namespace: str, block_s: float = 60) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", KILLED, url, namespace, str(block_s)])


class Strain:
    """
    How late the machine itself is: the longest delay of a short sleep, and of a question to the server.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.worst_ms = 0.0

    async def watch(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.002)
            await self._store.link.call("TIME")
            self.worst_ms = max(self.worst_ms, (time.monotonic() - began_s) * 1000 - 2)


async def _assert_none_waits(
    app, handler, rounds: int = 8, behind_first: Callable[[], None] = lambda: None
) -> None:
    """
    Enqueue a job now and one with a delay again and again, one at a time: none waits past the bound.

    *behind_first* is called when the wake-up of the first has gone out.

    Lateness is measured by the queue, in the server's time.  What the machine was late meanwhile counts once
    for each hop, so that a busy one fails no sound code.
    """
    strain = Strain(await app.store())
    watching = asyncio.create_task(strain.watch())
    seen = []
    try:
        for at in range(2 * rounds):
            strain.worst_ms = 0.0
            job = await app.enqueue(handler.job(at), delay=0.1 * (at % 2))
            if at == 0:
                behind_first()
            await job.result(timeout=30)
            seen.append(((await job.get()).lateness_ms, round(strain.worst_ms)))
    finally:
        watching.cancel()
    print(f"late and strained, in ms: {sorted(seen)}")
    assert [] == [(late, worst) for late, worst in seen if late > WAIT_MS + HOPS * worst], seen


async def _ranks(store: Store) -> int:
    """
    How many ranks of timers are held, on the shard with the fewest.
    """
    fields = [f"timer.{rank}" for rank in range(STANDS_BY + 1)]
    held = await on_all(store, "meta", "HMGET", *fields)
    return min(sum(holder is not None for holder in shard) for shard in held)


@pytest.mark.alone
@pytest.mark.parametrize("frozen", [3, 5])
@pytest.mark.parametrize("shards", [1, 3])
async def test_a_ready_job_waits_for_no_worker_that_froze(
    make_app, valkey, namespace, monkeypatch, shards, frozen
):
    monkeypatch.setenv("DULY_SHARDS", str(shards))
    # Nothing is found by polling.  Those that are stopped, as with a lost node, hold all ranks of the timers.
    app = make_app(**LAZY)

    @app.handler("herd")
    async def herd(at: int) -> None:
        pass

    store = await app.store()
    # They claim each second, so that they keep their ranks until they are stopped.
    victims = [_start_victim(valkey.url, namespace, 1) for _ in range(frozen)]
    try:
        await _all_wait(app, frozen)
        assert STANDS_BY + 1 == await _ranks(store)
        async with working(app, concurrency=10):
            await _all_wait(app, frozen + 1)
            for victim in victims:
                victim.send_signal(signal.SIGSTOP)
            await _assert_none_waits(app, herd)
    finally:
        for victim in victims:
            victim.kill()
            victim.wait()


@pytest.mark.alone
@pytest.mark.parametrize("shards", [1, 3])
async def test_a_ready_job_waits_for_no_worker_that_drains(make_app, shards):
    ended = asyncio.Event()
    draining = []

    async def held() -> None:
        await ended.wait()

    async def run(at: int) -> None:
        pass

    async with AsyncExitStack() as stack:
        stack.callback(ended.set)
        apps = [make_app(**LAZY | {"block": 1}, shards=shards, drain_grace=60) for _ in range(STANDS_BY + 1)]
        apps.append(make_app(**LAZY, shards=shards))
        stops = [asyncio.Event() for _ in apps]
        for app, stop in zip(apps[:-1], stops, strict=False):
            app.handler("held", concurrency=1)(held)
            app.handler("herd")(run)
            draining.append(asyncio.create_task(app.work(stop=stop, concurrency=10)))
        await _all_wait(apps[0], len(draining))
        store = await apps[0].store()
        assert STANDS_BY + 1 == await _ranks(store)
        for _ in draining:
            await apps[0].enqueue("held", {})
        await eventually(lambda: _count_running(store, "held", len(draining)), 30)
        herd = apps[-1].handler("herd")(run)
        await stack.enter_async_context(working(apps[-1], concurrency=10))
        await _all_wait(apps[-1], len(apps))
        for stop in stops[:-1]:
            stop.set()
        await _assert_none_waits(apps[-1], herd)
        assert not any(task.done() for task in draining), "none of them has drained"
        ended.set()
        await asyncio.gather(*draining)


async def _count_running(store: Store, topic: str, expected: int) -> None:
    assert expected == sum(
        [int(told or 0) for told in await on_all(store, "topics", "HGET", f"{topic}:running")]
    )


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_ready_job_waits_for_no_worker_that_its_wake_up_found_dead(make_app, valkey, namespace, how):
    # Nothing is found by polling: blocks and scans are minutes apart.
    app = make_app(**LAZY)

    @app.handler("herd")
    async def herd(at: int) -> None:
        pass

    victim = _start_victim(valkey.url, namespace)
    try:
        # It waits first, so that it is the first in the line.
        await _all_wait(app, 1)
        async with working(app, concurrency=10):
            await _all_wait(app, 2)
            # One that is stopped keeps its place in the line, and takes a token with it.
            victim.send_signal(signal.SIGSTOP)
            await _assert_none_waits(
                app, herd, behind_first=victim.kill if how is signal.SIGKILL else lambda: None
            )
    finally:
        victim.kill()
        victim.wait()


def test_every_pair_of_the_fairness_tests_has_jobs():
    for shards in (1, 2, 4, 16):
        found = Counter(shard_of("t0", str(number), shards) for number in range(RUNS * shards))
        assert shards == len(found)
        assert JobKey("t0", "1").topic == "t0"
        assert min(found.values()) > RUNS / 2
