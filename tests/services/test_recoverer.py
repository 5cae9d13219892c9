"""
The recoverer: takes back what was abandoned, and holds back when time itself is in doubt.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from duly import Duly, StoreUnavailable
from duly.job import JobState
from duly.namespace import inspect
from duly.services.contact import Contact
from duly.services.outlook import Outlook
from duly.services.recoverer import Recoverer
from duly.store import PER_CALL, Look
from tests.eventually import eventually
from tests.services.conftest import becomes, tally, working
from tests.services.test_limits import Gauge
from tests.shards import fixed_of, one_id_on_each, recover_all
from tests.store.kit import claim, enqueue, key

of_one = pytest.mark.one_shard("the recoverer of a scene is that of one shard")


class FakeTime:
    """
    A monotonic clock that a test moves.
    """

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def monotonic(monkeypatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr("duly.services.recoverer.time", fake)
    monkeypatch.setattr("duly.services.outlook.time", fake)
    monkeypatch.setattr("duly.services.contact.time", fake)
    return fake


class Scene:
    """
    A recoverer with its outlook, the server's clock and this process's, moved together or apart.
    """

    def __init__(self, store, clock, monotonic) -> None:
        self.store, self.clock, self.monotonic = store, clock, monotonic
        self.outlook = Outlook()
        self.contact = Contact(store.lease_ms / 2000)
        self.recoverer = Recoverer(store, 0, self.outlook, every_s=1, contact=self.contact)

        self.began_s = monotonic.now_s - 86_400  #: when this run of the server did
        self.runs = 1
        self.loads = False
        self._call = store.link.call
        store.link.call = self._answer

    async def _answer(self, *parts, **options):
        """
        What the server says; of itself, what the scene has it say.
        """
        if parts[0] != "INFO":
            return await self._call(*parts, **options)
        uptime_s = int(self.monotonic.now_s - self.began_s)
        return b"run_id:%d\r\nuptime_in_seconds:%d\r\nloading:%d\r\n" % (self.runs, uptime_s, self.loads)

    def restarts(self) -> None:
        """
        Let the server be restarted in no time.
        """
        self.runs += 1
        self.began_s = self.monotonic.now_s

    async def begin(self) -> None:
        # As in a process that has seen this server before: its start is not in question here.
        await self.recoverer._watch_server()
        self.recoverer._hold_until_s, self.recoverer._doubt = 0, False
        await self.look()
        await self.recoverer.run_once()

    def passes(self, s: float, *, server_s: float | None = None) -> None:
        """
        Let time pass in which the server is silent and nobody looks.
        """
        self.monotonic.now_s += s
        # A server's clock may be set back; the clock for tests of users refuses that.
        self.clock._now_ms += round((s if server_s is None else server_s) * 1000)

    async def look(self, *, took_s: float = 0) -> None:
        """
        What a claim or promote would note; the answer may have been read late.
        """
        sent_s = self.monotonic.now_s
        head = await self.store.link.call("ZRANGE", self.store.keys[0].fixed["leases"], 0, 0, "WITHSCORES")
        look = Look(
            now_ms=self.clock.now_ms,
            moved=0,
            next_due_ms=None,
            next_lease_ms=int(float(head[1])) if head else None,
            rank=0,
            peers=0,
            unnamed=(),
        )
        self.passes(took_s)
        self.outlook.note(look, sent_s)

    def is_late(self, s: float) -> None:
        """
        Let time pass in which the server answers the heart, but the loop of this process is busy.
        """
        while s > 0:
            self.passes(min(s, 5))
            self.contact.note()
            s -= 5

    async def steps(self, s: float) -> int:
        """
        Let *s* seconds pass with a look and a run of the recoverer each second.
        """
        touched = 0
        for _ in range(int(s)):
            self.passes(1)
            self.contact.note()
            await self.look()
            touched += await self.recoverer.run_once()
        return touched


@pytest.fixture
async def scene(store, clock, monotonic) -> Scene:
    scene = Scene(store, clock, monotonic)
    await scene.begin()
    return scene


@of_one
async def test_an_abandoned_job_is_recovered_when_its_lease_is_over(scene, store, views):
    await enqueue(store, "a")
    assert 1 == len(await claim(store))
    assert 0 == await scene.steps(14)
    assert 1 == await scene.steps(3)
    job = await views.get(key("a"))
    assert (JobState.ready, 1) == (job.state, job.crashes)


@of_one
async def test_after_a_jump_of_the_servers_clock_it_holds_back_and_counts_no_crash(scene, store, views):
    await enqueue(store, "extended")
    await enqueue(store, "abandoned")
    leases = await claim(store)
    await scene.steps(1)
    # Beyond the leases of 15 s; within the time to run of 60 s, past which none is extended.
    scene.passes(1, server_s=20)
    await scene.look()
    assert 0 == await scene.recoverer.run_once(), "every lease looks expired now"
    assert 0 == await scene.steps(10)
    assert [True] == await store.extend(0, [lease for lease in leases if lease.key.id == "extended"])
    assert 1 == await scene.steps(5)
    jobs = [await views.get(key(id_)) for id_ in ("extended", "abandoned")]
    assert [(JobState.running, 0), (JobState.ready, 0)] == [(job.state, job.crashes) for job in jobs]
    # From then on crashes count again.
    assert 1 == len(await claim(store))
    await scene.steps(17)
    assert 1 == (await views.get(key("abandoned"))).crashes


@of_one
async def test_a_clock_set_back_is_a_jump_too(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    await scene.steps(1)
    scene.passes(1, server_s=-60)
    await scene.look()
    await scene.recoverer.run_once()
    assert scene.recoverer._doubt


@of_one
async def test_a_server_that_was_out_of_reach_for_long_counts_no_crash(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    scene.passes(20)
    scene.contact.note()
    await scene.look()
    assert 0 == await scene.recoverer.run_once()
    assert 1 == await scene.steps(16)
    assert (JobState.ready, 0) == ((await views.get(key("a"))).state, (await views.get(key("a"))).crashes)


@of_one
async def test_a_server_that_was_out_of_reach_is_held_against_nobody_whoever_looks_first(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    scene.passes(20)
    assert 0 == await scene.recoverer.run_once(), "nobody has looked since"
    scene.contact.note()
    assert 1 == await scene.steps(16)
    assert (JobState.ready, 0) == ((await views.get(key("a"))).state, (await views.get(key("a"))).crashes)


@of_one
async def test_a_loop_that_was_busy_holds_nothing_back_while_the_server_was_there(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    touched = []
    for _ in range(3):
        # Past the silence of 5 s, again and again, and within the lease of 15 s.
        scene.is_late(6)
        await scene.look()
        touched.append(await scene.recoverer.run_once())
    assert [0, 0, 1] == touched
    assert (JobState.ready, 1) == ((await views.get(key("a"))).state, (await views.get(key("a"))).crashes)


@of_one
async def test_a_busy_loop_does_not_hide_that_the_server_was_away(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    scene.is_late(3)
    scene.passes(14)
    scene.contact.note()
    await scene.look()
    assert 0 == await scene.recoverer.run_once()
    assert 1 == await scene.steps(16)
    assert 0 == (await views.get(key("a"))).crashes


@of_one
async def test_however_often_a_doubt_is_renewed_recovery_waits_for_two_leases_at_most(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    touched, began_s = 0, scene.monotonic.now_s
    while not touched:
        # Nobody can tell whether the server was there.
        scene.passes(6)
        await scene.look()
        touched = await scene.recoverer.run_once()
        assert scene.monotonic.now_s - began_s <= 6 + 2 * 15 + 6
    assert scene.monotonic.now_s - began_s >= 2 * 15
    assert (JobState.ready, 0) == ((await views.get(key("a"))).state, (await views.get(key("a"))).crashes)


@of_one
async def test_after_an_outage_workers_have_a_lease_however_long_there_was_doubt_before(
    scene, store, views, monkeypatch
):
    await enqueue(store, "a")
    await claim(store)
    scene.passes(6)
    await scene.look()
    assert 0 == await scene.recoverer.run_once(), "the doubt begins"
    scene.passes(20)
    with monkeypatch.context() as away:
        away.setattr(store.link, "call", _refuse)
        with pytest.raises(StoreUnavailable):
            await scene.recoverer.run_once()
    scene.passes(600)
    scene.contact.note()
    await scene.look()
    assert 0 == await scene.recoverer.run_once()
    assert 0 == await scene.steps(14)
    assert 1 == await scene.steps(2)
    assert 0 == (await views.get(key("a"))).crashes


async def _refuse(*_):
    raise StoreUnavailable("away")


@of_one
async def test_a_restart_of_the_server_is_waited_for_however_long_there_was_doubt_before(scene, store):
    await enqueue(store, "a")
    await claim(store)
    for _ in range(5):
        scene.passes(6)
        await scene.look()
        assert 0 == await scene.recoverer.run_once()
    scene.passes(7)
    scene.restarts()
    await scene.look()
    assert 0 == await scene.recoverer.run_once(), "workers have one lease from now on"
    assert 0 == await scene.steps(14)
    assert 1 == await scene.steps(2)


@of_one
async def test_a_restart_long_ago_makes_no_lost_job_late_and_hides_no_crash(scene, store, views):
    scene.restarts()
    assert 0 == await scene.steps(40)
    await enqueue(store, "a")
    await claim(store)
    assert 0 == await scene.steps(14)
    assert 1 == await scene.steps(2)
    assert (JobState.ready, 1) == ((await views.get(key("a"))).state, (await views.get(key("a"))).crashes)


@of_one
async def test_after_a_restart_workers_have_one_lease_whenever_it_is_noticed(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    await scene.steps(8)
    scene.restarts()
    # The lease is over 7 s after the restart: that is when it is noticed.
    assert 0 == await scene.steps(14)
    assert 1 == await scene.steps(2)
    assert (JobState.ready, 0) == ((await views.get(key("a"))).state, (await views.get(key("a"))).crashes)


@of_one
async def test_a_restart_while_another_is_waited_for_adds_one_lease_from_itself_at_most(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    await scene.steps(14)
    scene.restarts()
    assert 0 == await scene.steps(10)
    scene.restarts()
    assert 0 == await scene.steps(14)
    assert 1 == await scene.steps(2)
    assert 0 == (await views.get(key("a"))).crashes


@of_one
async def test_workers_have_one_lease_from_when_a_server_has_loaded_its_data(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    scene.restarts()
    scene.loads = True
    assert 0 == await scene.steps(40)
    scene.loads = False
    assert 0 == await scene.steps(14)
    assert 1 == await scene.steps(2)
    assert 0 == (await views.get(key("a"))).crashes


@of_one
async def test_when_another_server_takes_over_workers_have_one_lease_from_then_on(scene, store, views):
    await enqueue(store, "a")
    await claim(store)
    scene.runs += 1
    assert 0 == await scene.steps(15 + 14)
    assert 1 == await scene.steps(3)
    assert 0 == (await views.get(key("a"))).crashes


@of_one
async def test_an_answer_read_late_is_not_a_jump(scene, store):
    await scene.steps(2)
    # A handler blocked the loop: the answer was there long before it was read.
    await scene.look(took_s=8)
    await scene.steps(1)
    scene.recoverer._doubt = False
    await scene.steps(3)
    assert not scene.recoverer._doubt


@of_one
async def test_all_that_ran_out_during_a_doubt_is_uncounted_however_much_it_is(scene, store):
    for number in range(450):
        await enqueue(store, f"j{number}")
    while await claim(store, limit=PER_CALL):
        pass
    scene.passes(1, server_s=3_600)
    await scene.look()
    await scene.recoverer.run_once()
    assert 450 == await scene.steps(20)
    counts = await store.link.call("HMGET", store.keys[0].fixed["topics"], "mail:ready", "mail:scheduled")
    assert [450, 0] == [int(count or 0) for count in counts]


async def test_right_after_the_start_of_a_server_it_holds_back(own_server, make_app, namespace):
    # "Just" is within about a lease; nothing waits for that to end.
    app = make_app(own_server.url, lease=60, recover_scan=0.1)
    store = await app.store()
    recoverer = Recoverer(store, 0, Outlook(), every_s=0.1)
    assert 0 == await recoverer.run_once()
    assert recoverer._doubt
    own_server.kill()
    own_server.start()
    recoverer._hold_until_s, recoverer._doubt = 0, False
    await recoverer._watch_server()
    assert recoverer._doubt, "it is another run of the server"


async def _crash(store, topic: str, count: int) -> None:
    """
    Let a worker that dies claim what is there, and take it back.
    """
    store.lease_ms = 1
    assert count == len(await claim(store, topic, worker="dead", limit=100))

    taken_back = 0

    # Each shard's leases end by themselves, so one look may find those of some only.
    async def recovered() -> None:
        nonlocal taken_back
        taken_back += await recover_all(store)
        assert count == taken_back

    await eventually(recovered)


async def test_jobs_that_crashed_once_run_side_by_side_at_once(make_app):
    app = make_app(recover_scan=300, stall=1200)
    suspects = Gauge()
    together = asyncio.Event()

    @app.handler("mixed")
    async def mixed() -> int:
        from duly import current_job

        with suspects:
            if suspects.now == 6:
                together.set()
            await asyncio.wait_for(together.wait(), 30)
        return current_job().crashes

    crashed = [await app.enqueue(mixed.job(), id=f"s{number}") for number in range(6)]
    store = app.make_store()
    await _crash(store, "mixed", 6)
    async with working(app, concurrency=10):
        assert {1} == {await job.result(timeout=60) for job in crashed}
    assert 6 == suspects.most
    await store.link.aclose()


async def test_a_job_that_crashed_twice_runs_alone_and_waits_for_no_end_of_work(make_app):
    app = make_app(recover_scan=300, stall=1200)
    runs = Gauge()
    beside: list[int] = []

    @app.handler("mixed")
    async def mixed() -> int:
        from duly import current_job

        with runs:
            await asyncio.sleep(0.01)
            if current_job().crashes > 1:
                beside.append(runs.now)
        return current_job().crashes

    crashed = [await app.enqueue(mixed.job(), id=f"s{number}") for number in range(3)]
    store = app.make_store()
    await _crash(store, "mixed", 3)
    await asyncio.sleep(0.11)  # the halves of a group are kept apart for a tenth of a second
    await _crash(store, "mixed", 3)
    stop = asyncio.Event()

    async def send_on() -> None:
        while not stop.is_set():
            await app.enqueue(mixed.job())
            await asyncio.sleep(0.001)

    async with working(app, concurrency=10):
        sending = asyncio.create_task(send_on())
        assert {2} == {await job.result(timeout=60) for job in crashed}
        stop.set()
        await sending
    assert [1, 1, 1] == beside
    await store.link.aclose()


async def test_what_a_dead_worker_held_comes_back_on_every_shard(make_app):
    app = make_app(lease=1, recover_scan=0.1)

    @app.handler("mail")
    async def mail() -> None: ...

    dead = app.make_store()
    dead.lease_ms = 1
    await dead.create()
    ids = one_id_on_each(dead, "mail")
    jobs = [await app.enqueue(mail.job(), id=id_) for id_ in ids]
    assert len(ids) == len(await claim(dead, worker="dead"))
    await dead.link.aclose()
    async with working(app):
        for job in jobs:
            await job.result(timeout=60)


async def test_a_worker_that_lost_a_job_to_the_recoverer_may_run_it_again_itself(make_app):
    app = make_app(recover_scan=0.05)
    gates = [asyncio.Event(), asyncio.Event()]
    stopped = []

    @app.handler("twice")
    async def twice() -> str:
        from duly import current_job

        crashes = current_job().crashes
        try:
            await asyncio.wait_for(gates[crashes].wait(), 30)
        except asyncio.CancelledError:
            stopped.append(crashes)
            raise
        return f"run {crashes}"

    async with working(app):
        job = await app.enqueue(twice.job())
        await becomes(job, "running")
        store = await app.store()
        await store.link.call("ZADD", fixed_of(store, *job.key)["leases"], 1, job.key.member)
        assert 1 == await recover_all(store)
        await eventually(lambda: [0] == stopped)
        gates[1].set()
        assert "run 1" == await job.result(timeout=10)


class BusyWorker(threading.Thread):
    """
    A worker whose handler blocks its loop again and again.
    """

    def __init__(self, block_s: float, url: str, **settings) -> None:
        super().__init__(daemon=True)
        self.block_s, self.url, self.settings = block_s, url, settings
        self.ending = threading.Event()

    def run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with Duly(self.url, **self.settings) as app:
            stop = asyncio.Event()

            @app.handler("block", ttr=600)
            async def block() -> None:
                while not self.ending.is_set():
                    time.sleep(self.block_s)
                    await asyncio.sleep(0.05)
                stop.set()

            await app.work(stop=stop)


async def test_a_handler_that_blocks_the_loop_again_and_again_does_not_hold_recovery_back(
    make_app, valkey, namespace
):
    lease_s = 9
    settings = {"lease": lease_s, "timer_scan": 0.5, "recover_scan": 0.5}
    app = make_app(**settings)
    store = await app.store()
    while (await inspect(store.link)).uptime_s <= lease_s + 2:
        await asyncio.sleep(0.1)  # right after the start of a server no crash is counted
    busy = BusyWorker(lease_s / 3 + 0.5, valkey.url, namespace=namespace, **settings)
    busy.start()
    try:
        await app.enqueue("block", {}, id="b")
        await becomes(app.job("block", "b"), "running", 30)
        jobs = [await app.enqueue("lost", {}) for _ in range(5)]
        assert 5 == len(await claim(store, "lost", worker="dead"))

        async def recovered() -> None:
            assert [1] * 5 == [(await job.get()).crashes for job in jobs]

        await eventually(recovered, 5 * lease_s)
        assert ("running", 0, 0) == await tally(app.job("block", "b")), "it has kept its own"
    finally:
        busy.ending.set()
        await asyncio.to_thread(busy.join, 30)
