"""
Handlers that raise what ends a loop, cancel themselves, or do not stop when they are told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

import pytest
from pydantic import BaseModel, field_validator, model_serializer

from duly import Duly, Fixed, JobFailed, current_job
from duly.services import deciding, stragglers
from duly.services.worker import WORN_HANDLERS, WornOut
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, tally, working
from tests.services.processes import Panic
from tests.services.test_limits import Gauge

RAISED = {
    "exit": (SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt("key"), "KeyboardInterrupt: key"),
    "generator": (GeneratorExit("end"), "GeneratorExit: end"),
    "panic": (Panic("unwrapped nothing"), "Panic: unwrapped nothing"),
    "cancelled": (asyncio.CancelledError("by hand"), "CancelledError: by hand"),
}


class Neighbour:
    """
    A job that runs on the same worker, from before something happens until after it.
    """

    def __init__(self, app: Duly) -> None:
        self._gate = asyncio.Event()

        @app.handler("neighbour")
        async def neighbour() -> str:
            await asyncio.wait_for(self._gate.wait(), 60)
            return "finished"

        self._send = neighbour.job
        self._app = app

    async def begin(self) -> None:
        self._job = await self._app.enqueue(self._send())
        await becomes(self._job, "running")

    async def finish(self) -> None:
        self._gate.set()
        assert "finished" == await self._job.result(timeout=10)
        assert ("succeeded", 1, 0) == await tally(self._job)


# -- what they raise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", [False, True], ids=["bare", "middleware"])
@pytest.mark.parametrize("place", ["loop", "thread"])
@pytest.mark.parametrize("kind", RAISED)
async def test_whatever_a_handler_raises_is_a_failed_attempt_and_nobody_elses(app, place, kind, around):
    error, message = RAISED[kind]

    async def on_loop() -> None:
        await asyncio.sleep(0)
        raise error

    def in_thread() -> None:
        raise error

    app.handler("unruly", max_attempts=2, backoff=Fixed(0.01))(on_loop if place == "loop" else in_thread)
    if around:

        @app.around_handler
        async def through(job, call_next):
            return await call_next()

    neighbour = Neighbour(app)
    async with working(app):
        await neighbour.begin()
        job = await app.enqueue("unruly", {})
        with pytest.raises(JobFailed, match=message):
            await job.result(timeout=10)
        await neighbour.finish()
    assert ("dead", 2, 0) == await tally(job)


@pytest.mark.parametrize(
    ("how", "message"), [("sys.exit", "SystemExit: enough"), ("panic", "Panic: unwrapped")]
)
async def test_what_a_handler_in_a_process_raises_is_a_failed_attempt(app, how, message):
    app.handlers.add(processes.end)
    async with working(app):
        job = await app.enqueue(processes.end.job(how), backoff=Fixed(0.01))
        with pytest.raises(JobFailed, match=message):
            await job.result(timeout=100)
    assert ("dead", 2, 0) == await tally(job)


@pytest.mark.parametrize("then", ["waits", "raises", "is cancelled later"])
async def test_a_handler_that_cancels_itself_has_failed(app, then):
    @app.handler("own", max_attempts=2, backoff=Fixed(0.01))
    async def own() -> None:
        cancel = asyncio.current_task().cancel
        match then:
            case "waits":
                cancel("enough")
                await asyncio.sleep(60)
            case "raises":
                cancel()
                raise ValueError("enough")
            case _:
                # While its outcome is on its way.
                asyncio.get_running_loop().call_soon(cancel)
                raise ValueError("enough")

    neighbour = Neighbour(app)
    async with working(app):
        await neighbour.begin()
        job = await app.enqueue(own.job())
        with pytest.raises(JobFailed, match="enough"):
            await job.result(timeout=10)
        await neighbour.finish()
    assert ("dead", 2, 0) == await tally(job)


async def test_a_handler_that_cancels_itself_and_returns_has_succeeded(app):
    @app.handler("own")
    async def own() -> str:
        asyncio.current_task().cancel()
        return "done"

    app.on_success(lambda job, result: None)
    async with working(app):
        assert "done" == await (await app.enqueue(own.job())).result(timeout=10)


class Rusty(BaseModel):
    """
    A model that panics while it is read or written.
    """

    when: str

    @field_validator("when")
    @classmethod
    def read(cls, value: str) -> str:
        if value == "read":
            raise Panic("while it was read")
        return value

    @model_serializer
    def write(self) -> dict[str, str]:
        raise Panic("while it was written")


async def test_what_is_raised_around_a_handler_is_its_failure_too(app):
    @app.handler("rusty", max_attempts=1)
    async def rusty(when: str) -> Rusty:
        return Rusty.model_construct(when=when)

    @app.handler("typed", max_attempts=1)
    async def typed(model: Rusty) -> None: ...

    @app.handler("odd", max_attempts=2, backoff=lambda _attempt: sys.exit("no wait"))
    async def odd() -> int:
        if current_job().attempt == 1:
            raise ValueError("again")
        return current_job().attempt

    @app.around_handler
    async def strict(job, call_next):
        if job.id == "refused":
            sys.exit("refused by middleware")
        return await call_next()

    neighbour = Neighbour(app)
    async with working(app):
        await neighbour.begin()
        for job, message in (
            (await app.enqueue(rusty.job("written")), "Panic: while it was written"),
            (await app.enqueue("typed", {"model": {"when": "read"}}), "Panic: while it was read"),
            (await app.enqueue(rusty.job("-"), id="refused"), "SystemExit: refused by middleware"),
        ):
            with pytest.raises(JobFailed, match=message):
                await job.result(timeout=10)
            assert ("dead", 1, 0) == await tally(job)
        assert 2 == await (await app.enqueue(odd.job())).result(timeout=20)
        await neighbour.finish()


async def test_a_hook_that_exits_changes_nothing(app, caplog):
    @app.handler("hooked", max_attempts=1)
    async def hooked() -> str:
        if current_job().id == "bad":
            raise ValueError("no")
        return "fine"

    told = []
    for register in (app.on_start, app.on_success, app.on_failure):

        @register
        async def leave(job, *_):
            sys.exit("from a hook")

        register(lambda job, *_: told.append(job.id))

    async with working(app):
        assert "fine" == await (await app.enqueue(hooked.job(), id="good")).result(timeout=10)
        with pytest.raises(JobFailed, match="ValueError: no"):
            await (await app.enqueue(hooked.job(), id="bad")).result(timeout=10)
        await eventually(lambda: ["bad", "bad", "good", "good"] == sorted(told))
    assert {"hook on_start failed", "hook on_success failed", "hook on_failure failed"} == {
        record.getMessage().partition(":")[0] for record in caplog.records if record.name == "duly.hooks"
    }


async def test_what_is_cancelled_together_with_the_loop_is_given_back(make_app, valkey, namespace):
    app = make_app()
    await app.store()
    ran = threading.Event()

    def run() -> None:
        async def main() -> None:
            async with Duly(valkey.url, namespace=namespace, drain_grace=5) as other:

                @other.handler("held")
                async def held() -> None:
                    ran.set()
                    await asyncio.sleep(60)

                work = asyncio.create_task(other.work())
                await eventually(ran.is_set)
                # Cancelled as `asyncio.run` does it, without a word to the worker.
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.wait([work])

        asyncio.run(main())

    job = await app.enqueue("held", {})
    await asyncio.to_thread(run)
    assert ("ready", 0, 0) == await tally(job)
    assert ran.is_set()


# -- those that do not stop -------------------------------------------------------------------------------


class Deaf:
    """
    A handler that goes on when it is told to stop, and stops when the test says so.
    """

    def __init__(self) -> None:
        self.gauge = Gauge()
        self.release = threading.Event()
        self.runs = 0

    def add_to(self, app: Duly, place: str, **options):
        async def on_loop() -> str:
            with self.gauge:
                self.runs += 1
                while self.runs == 1 and not self.release.is_set():
                    try:
                        await asyncio.sleep(0.01)
                    except asyncio.CancelledError:
                        continue
            return "done"

        def in_thread() -> str:
            with self.gauge:
                self.runs += 1
                if self.runs == 1:
                    self.release.wait(60)
            return "done"

        return app.handler("deaf", **options)(on_loop if place == "loop" else in_thread)


@pytest.fixture
def deaf():
    deaf = Deaf()
    yield deaf
    deaf.release.set()


PLACES = pytest.mark.parametrize("place", ["loop", "thread"])


@PLACES
@pytest.mark.parametrize("around", [False, True], ids=["bare", "middleware"])
async def test_a_handler_that_does_not_stop_in_time_has_failed_and_its_slot_is_free(
    make_app, deaf, place, around
):
    app = make_app(concurrency=1)
    handler = deaf.add_to(app, place, ttr=0.1, max_attempts=1)
    finished = []

    @app.handler("after")
    async def after() -> str:
        return "its turn"

    if around:

        @app.around_handler
        async def through(job, call_next):
            try:
                return await call_next()
            finally:
                finished.append(job.topic)

    async with working(app):
        job = await app.enqueue(handler.job())
        with pytest.raises(JobFailed, match=r"time to run of 0\.1 s and did not stop when told"):
            await job.result(timeout=20)
        assert "its turn" == await (await app.enqueue(after.job())).result(timeout=10)
        assert 1 == deaf.gauge.now, "it still runs"
        deaf.release.set()
        await eventually(lambda: 0 == deaf.gauge.now)
        if around:
            await eventually(lambda: "deaf" in finished)
    assert ("dead", 1, 0) == await tally(job)


@PLACES
async def test_no_other_run_begins_on_a_worker_where_an_earlier_one_has_not_ended(
    make_app, deaf, place, monkeypatch
):
    monkeypatch.setattr(stragglers, "WORN_S", 0.1)
    monkeypatch.setattr(deciding, "PUT_OFF_MS", 20)
    app = make_app()
    handler = deaf.add_to(app, place, ttr=1, max_attempts=2, backoff=Fixed(0.01))
    async with working(app):
        job = await app.enqueue(handler.job())

        async def is_put_off() -> bool:
            return b'"overlap"' in (await job.get()).outcome

        await eventually(is_put_off, 30)
        assert (1, 1) == (deaf.gauge.now, deaf.runs)
        assert (1, 0) == (await tally(job))[1:], "only the first run has counted"
        deaf.release.set()
        assert "done" == await job.result(timeout=20)
    assert (1, 2) == (deaf.gauge.most, deaf.runs)
    assert ("succeeded", 2, 0) == await tally(job)


@PLACES
async def test_another_worker_takes_what_cannot_begin_here(make_app, deaf, place, monkeypatch):
    monkeypatch.setattr(stragglers, "WORN_S", 0.1)
    monkeypatch.setattr(deciding, "PUT_OFF_MS", 20)
    one, other = make_app(), make_app()
    handler = deaf.add_to(one, place, ttr=0.1, max_attempts=2, backoff=Fixed(0.01))

    @other.handler("deaf")
    async def elsewhere() -> str:
        return "elsewhere"

    async with working(one):
        job = await one.enqueue(handler.job())
        await eventually(lambda: 1 == deaf.runs)
        async with working(other):
            assert "elsewhere" == await job.result(timeout=30)
    assert 1 == deaf.runs
    assert ("succeeded", 2, 0) == await tally(job)


@PLACES
async def test_a_job_that_was_taken_away_begins_again_only_when_its_first_run_has_ended(make_app, place):
    app = make_app(recover_scan=0.05)
    gauge, begun = Gauge(), []

    async def on_loop() -> str:
        with gauge:
            begun.append(1)
            try:
                await asyncio.sleep(60 if len(begun) == 1 else 0)
            finally:
                # What it tidies up takes a while.
                await asyncio.sleep(0.3)
        return "done"

    def in_thread() -> str:
        with gauge:
            begun.append(1)
            if len(begun) == 1:
                current_job().cancelled_event.wait(60)
                time.sleep(0.3)
        return "done"

    handler = app.handler("slow")(on_loop if place == "loop" else in_thread)
    async with working(app):
        job = await app.enqueue(handler.job())
        await eventually(lambda: [1] == begun)
        replaced = await app.enqueue(handler.job(), id=job.id, on_conflict="replace")
        assert "done" == await replaced.result(timeout=20)
    assert (1, 2) == (gauge.most, len(begun))


@PLACES
async def test_what_does_not_stop_for_a_drain_is_given_back(make_app, deaf, place, monkeypatch):
    monkeypatch.setattr(stragglers, "WORN_S", 0.1)
    app = make_app(drain_grace=0.1)
    handler = deaf.add_to(app, place)
    async with working(app):
        job = await app.enqueue(handler.job())
        await eventually(lambda: 1 == deaf.runs)
    assert ("ready", 0, 0) == await tally(job)


async def test_a_handler_that_stops_too_late_for_its_worker_leaves_nothing_behind(
    own_server, make_app, monkeypatch
):
    monkeypatch.setattr("duly.services.worker.SETTLE_S", 0.3)
    app = make_app(own_server.url, drain_grace=0.1)
    stop = asyncio.Event()

    @app.handler("late")
    async def late() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    job = await app.enqueue(late.job())
    before = asyncio.all_tasks()
    work = asyncio.create_task(app.work(stop=stop))
    await becomes(job, "running")
    own_server.kill()
    stop.set()
    await asyncio.wait_for(work, 20)
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_a_thread_that_middleware_waits_for_no_longer_is_told_and_nothing_begins_beside_it(
    make_app, monkeypatch
):
    monkeypatch.setattr(deciding, "PUT_OFF_MS", 20)
    app = make_app()
    gauge, told = Gauge(), []

    @app.around_handler
    async def impatient(job, call_next):
        async with asyncio.timeout(0.1 if job.attempt == 1 else 30):
            return await call_next()

    @app.handler("slow", max_attempts=2, backoff=Fixed(0.01))
    def slow() -> str:
        with gauge:
            if current_job().attempt == 1:
                told.append(current_job().cancelled_event.wait(60))
                time.sleep(0.3)
        return "done"

    async with working(app):
        assert "done" == await (await app.enqueue(slow.job())).result(timeout=30)
    assert ([True], 1) == (told, gauge.most)


async def test_a_process_whose_children_keep_its_pipe_open_has_failed_at_its_time(app, tmp_path):
    app.handlers.add(processes.fork)
    path = tmp_path / "pid"
    async with working(app):
        job = await app.enqueue(processes.fork.job(str(path)), ttr=3)
        try:
            with pytest.raises(JobFailed, match="did not stop when told"):
                await job.result(timeout=60)
        finally:
            os.kill(int(path.read_text()), signal.SIGKILL)
    assert ("dead", 1, 0) == await tally(job)


async def test_a_worker_with_too_many_async_handlers_that_will_not_stop_ends(app, monkeypatch):
    monkeypatch.setattr(stragglers, "WORN_S", 0.05)

    @app.handler("deaf", ttr=0.05, max_attempts=1)
    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    for _ in range(WORN_HANDLERS):
        await app.enqueue(deaf.job())
    before = asyncio.all_tasks()
    with pytest.raises(WornOut, match="8 handlers did not stop"):
        await asyncio.wait_for(app.work(), 20)
    # Nobody could close a loop on which they go on for ever.
    await eventually(lambda: asyncio.all_tasks() <= before)
