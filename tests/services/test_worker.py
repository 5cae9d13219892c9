"""
The worker end to end: handlers of all kinds, their results, failures and planned endings.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pytest

from duly import Bury, Fixed, JobFailed, Retry, Snooze, UsageError, current_job
from duly.job import JobKey, Order
from duly.logs import JsonFormatter, TextFormatter
from duly.services.running import Run
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, tally, working


@dataclass
class Point:
    x: int
    y: int


async def test_an_async_handler_runs_and_its_result_is_typed(app):
    @app.handler("move")
    async def move(point: Point, *, by: int = 1) -> Point:
        return Point(point.x + by, point.y + by)

    async with working(app):
        job = await app.enqueue(move.job(Point(1, 2), by=10))
        assert Point(11, 12) == await job.result(timeout=10)
    assert ("succeeded", 1, 0) == await tally(job)


async def test_a_sync_handler_runs_in_a_thread(app):
    @app.handler("where")
    def where() -> str:
        return threading.current_thread().name

    async with working(app):
        assert "duly-handler" == await (await app.enqueue(where.job())).result(timeout=10)


async def test_a_process_handler_runs_in_a_child_that_is_kept(app):
    app.handlers.add(processes.about)
    async with working(app):
        jobs = [await app.enqueue(processes.about.job(), context={"tenant": "acme"}, id="a")]
        first = await jobs[0].result(timeout=100)
        jobs.append(await app.enqueue(processes.about.job(), id="b"))
        again = await jobs[1].result(timeout=100)
    assert os.getpid() != first["pid"]
    assert first["pid"] == again["pid"]
    assert ("a", "about", 1, {"tenant": "acme"}, False) == tuple(
        first[name] for name in ("id", "topic", "attempt", "context", "cancelled")
    )
    assert 0 < first["remaining"] <= 300
    assert first["token"] < again["token"]


async def test_senders_without_the_code_send_by_name(app):
    @app.handler("double")
    async def double(number: int) -> int:
        return 2 * number

    async with working(app):
        assert 14 == await (await app.enqueue("double", {"number": 7})).result(timeout=10)
        assert 16 == await (await app.enqueue("double", 8)).result(timeout=10)


async def test_a_failing_handler_is_tried_again_with_its_backoff_until_it_is_dead(app):
    seen = []

    @app.handler("flaky", max_attempts=3, backoff=Fixed(0.05))
    async def flaky() -> None:
        seen.append((current_job().attempt, asyncio.get_running_loop().time()))
        raise ValueError("attempt failed")

    async with working(app):
        job = await app.enqueue(flaky.job())
        with pytest.raises(JobFailed, match="ValueError: attempt failed"):
            await job.result(timeout=10)
    assert [1, 2, 3] == [attempt for attempt, _ in seen]
    assert all(later - earlier >= 0.05 for (_, earlier), (_, later) in pairwise(seen))
    dead = await job.get()
    assert ("dead", 3) == (dead.state.name, dead.attempts)
    assert b"Traceback" not in dead.outcome


async def test_the_log_of_a_worker_tells_of_each_failure(app, caplog):
    @app.handler("flaky", max_attempts=2, backoff=Fixed(0.01))
    async def flaky(ending: str) -> None:
        if ending == "snooze" and not snoozed:
            snoozed.append(ending)
            raise Snooze(0.01)
        if ending == "fail":
            raise ValueError("no such user")

    snoozed: list[str] = []
    caplog.set_level("INFO", "duly.runs")
    async with working(app):
        with pytest.raises(JobFailed):
            await (await app.enqueue(flaky.job("fail"), id="a")).result(timeout=10)
        await (await app.enqueue(flaky.job("snooze"), id="b")).result(timeout=10)
        await app.enqueue("flaky", {"wrong": 1}, id="c")
        await becomes(app.job("flaky", "c"), "dead")
    place = "ValueError at test_worker.py:LINE"
    told = [record for record in caplog.records if record.name == "duly.runs"]
    assert [
        ("WARNING", f"flaky/a, attempt 1: failed, again in 0.01 s: {place}: no such user", "ValueError"),
        ("ERROR", f"flaky/a, attempt 2: dead: {place}: no such user", "ValueError"),
        ("INFO", "flaky/b, attempt 1: put off, again in 0.01 s: snoozed", ""),
    ] == [
        (
            record.levelname,
            re.sub(r"\.py:\d+", ".py:LINE", record.message),
            record.exc_info[0].__name__ if record.exc_info else "",
        )
        for record in told[:3]
    ]
    [unreadable] = told[3:]
    assert "ERROR" == unreadable.levelname
    assert unreadable.message.startswith("flaky/c, attempt 1: dead: unreadable: ")
    lines = [TextFormatter().format(record) for record in told]
    assert [1] * 4 == [len(line.splitlines()) for line in lines], (
        "tracebacks show only where they are asked for"
    )


async def test_tracebacks_are_logged_and_kept_where_they_are_asked_for(app, caplog):
    @app.handler("flaky", max_attempts=1)
    async def flaky() -> None:
        raise ValueError("no such user")

    stop = asyncio.Event()
    work = asyncio.create_task(app.work(stop=stop, tracebacks=True))
    job = await app.enqueue(flaky.job())
    await becomes(job, "dead")
    stop.set()
    await work
    [record] = [each for each in caplog.records if each.name == "duly.runs"]
    for form in (TextFormatter(), JsonFormatter()):
        assert "Traceback (most recent call last)" in form.format(record)
    assert b"Traceback" in (await job.get()).outcome


async def test_tracebacks_of_handlers_in_processes_are_logged_and_kept_as_well(app, caplog):
    app.handlers.add(processes.tell)
    async with working(app, tracebacks=True):
        job = await app.enqueue(processes.tell.job("4711"), max_attempts=1)
        await becomes(job, "dead", 60)
    [record] = [each for each in caplog.records if each.name == "duly.runs"]
    assert record.getMessage().endswith("dead: ValueError: no such card: 4711")
    kept = (await job.get()).outcome.decode()
    for text in (TextFormatter().format(record), kept):
        assert "Traceback (most recent call last)" in text
        assert "in tell" in text


async def test_an_exception_that_an_ending_was_raised_over_goes_with_the_record(app, caplog):
    @app.handler("over", max_attempts=1)
    async def over(how: str) -> None:
        try:
            {}["no such user"]
        except LookupError:
            if how == "quiet":
                raise Bury("planned") from None
            raise Bury("planned")  # noqa: B904  # that is what it is about

    async with working(app):
        for how in ("loud", "quiet"):
            await becomes(await app.enqueue(over.job(how), id=how), "dead")
    loud, quiet = (each for each in caplog.records if each.name == "duly.runs")
    assert (KeyError, None) == (loud.exc_info[0], quiet.exc_info)


async def test_attempts_and_backoff_of_a_job_outweigh_those_of_its_handler(app):
    @app.handler("flaky", max_attempts=5, backoff=Fixed(60))
    def flaky() -> int:
        if current_job().attempt < 2:
            raise ValueError("not yet")
        return current_job().attempt

    async with working(app):
        assert 2 == await (await app.enqueue(flaky.job(), backoff=Fixed(0.01))).result(timeout=10)
        once = await app.enqueue(flaky.job(), max_attempts=1)
        with pytest.raises(JobFailed):
            await once.result(timeout=10)


@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_planned_endings(app, place, raised):
    def plan():
        job = current_job()
        match job.id:
            case "snooze" if job.id not in seen:
                ending = Snooze(0.01)
            case "retry" if job.attempt == 1:
                ending = Retry(delay=0.01, reason="later")
            case "bury":
                ending = Bury("enough")
            case _:
                return job.attempt
        seen.append(job.id)
        if raised:
            raise ending
        return ending

    async def plan_async():
        return plan()

    seen: list[str] = []
    app.handler("plan", max_attempts=5)(plan_async if place == "loop" else plan)
    async with working(app):
        # A snooze does not count, a retry does.
        assert 1 == await (await app.enqueue("plan", {}, id="snooze")).result(timeout=10)
        assert 2 == await (await app.enqueue("plan", {}, id="retry")).result(timeout=10)
        with pytest.raises(JobFailed, match="buried: enough"):
            await (await app.enqueue("plan", {}, id="bury")).result(timeout=10)
    assert ["snooze", "retry", "bury"] == seen


async def test_endings_in_a_child_process(app, tmp_path):
    app.handlers.add(processes.end)
    send = processes.end.job
    async with working(app):
        options = {"backoff": Fixed(0.01)}
        raised = await app.enqueue(send("raise"), **options)
        exited = await app.enqueue(send("exit"), **options)
        buried = await app.enqueue(send("bury"), **options)
        retried = await app.enqueue(send("retry"), **options)
        odd = await app.enqueue(send("unserialisable"), **options)
        large = await app.enqueue(send("progress"), **options)
        snoozed = await app.enqueue(send("snooze"), context={"path": str(tmp_path / "woken")})
        for job, error in (
            (raised, "KeyError: 'in a child'"),
            (exited, "ChildCrashed: .*exit code 3"),
            (buried, "buried: enough"),
            (retried, "retry: again, please"),
            (odd, "UsageError: result cannot be written"),
            (large, "UsageError: progress is"),
        ):
            # Each has a child of its own, and all of these import at once.
            with pytest.raises(JobFailed, match=error):
                await job.result(timeout=100)
        assert 0 == (await snoozed.get()).attempts
        (tmp_path / "woken").touch()
        assert "woke" == await snoozed.result(timeout=100)
    assert (2, 0) == (await tally(exited))[1:]
    assert 1 == (await odd.get()).attempts


async def test_an_unreadable_payload_is_buried_at_once_and_kept(app):
    ran = []

    @app.handler("greet", max_attempts=5)
    async def greet(name: str) -> None:
        ran.append(name)

    store = await app.store()
    for id_, payload in (("json", b"{not json"), ("name", b'{"nome":"x"}'), ("type", b'{"name":7}')):
        await store.enqueue(Order(JobKey("greet", id_), payload))
    await store.enqueue(Order(JobKey("greet", "envelope"), b'{"name":"x"}', envelope=b"{broken"))
    async with working(app):
        for id_ in ("json", "name", "type"):
            dead = await becomes(app.job("greet", id_), "dead")
            assert "unreadable" == msgspec.json.decode(dead.outcome)["type"]
            assert 1 == dead.attempts
        with pytest.raises(JobFailed, match="unreadable: envelope"):
            await app.job("greet", "envelope").result(timeout=10)
    assert b"{not json" == (await app.job("greet", "json").get()).payload
    assert [] == ran


async def test_a_cancelled_error_of_the_handlers_own_is_a_failed_attempt(app):
    @app.handler("oops", max_attempts=1)
    async def oops() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await task

    async with working(app):
        with pytest.raises(JobFailed, match="CancelledError"):
            await (await app.enqueue(oops.job())).result(timeout=10)


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_handler_knows_its_job_and_reports_progress(app, place):
    done = threading.Event()

    def look() -> dict:
        job = current_job()
        return {
            "id": job.id,
            "topic": job.topic,
            "attempt": job.attempt,
            "crashes": job.crashes,
            "revision": job.revision,
            "context": job.context,
            "due": job.due_at.timestamp(),
            "left": job.remaining(),
            "token": job.token,
        }

    async def on_loop() -> dict:
        await current_job().progress({"percent": 50})
        while not done.is_set():
            await asyncio.sleep(0.005)
        return look()

    def in_thread() -> dict:
        current_job().progress({"percent": 50})
        done.wait(10)
        return look()

    app.handler("know", ttr=20)(on_loop if place == "loop" else in_thread)
    async with working(app):
        job = await app.enqueue("know", {}, id="k", context={"tenant": "acme", "n": 1})

        async def reported():
            return b'{"percent":50}' == (await job.get()).progress

        await eventually(reported)
        done.set()
        told = await job.result(timeout=10)
    assert ("k", "know", 1, 0, {"tenant": "acme", "n": 1}) == tuple(
        told[name] for name in ("id", "topic", "attempt", "crashes", "context")
    )
    assert (job.placed.revision, job.placed.due_ms / 1000) == (told["revision"], told["due"])
    assert 0 < told["left"] <= 20
    assert b"" == (await job.get()).progress, "progress goes when the job has ended"


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_run_that_has_ended_leaves_nothing_to_the_garbage_collector(app, place, wrapped):
    async def on_loop() -> str:
        return current_job().id

    def in_thread() -> str:
        return current_job().id

    light = app.handler("light")(on_loop if place == "loop" else in_thread)
    if wrapped:

        @app.around_handler
        async def around(job, call_next):
            return await call_next()

    def left() -> int:
        # Not those of other tests, whose threads may never end.
        return sum(type(thing) is Run and thing.handler is light for thing in gc.get_objects())

    async with working(app):
        await (await app.enqueue(light.job())).result(timeout=30)
        gc.collect()
        gc.disable()
        try:
            for job in await app.enqueue_many([light.job() for _ in range(20)]):
                await job.result(timeout=30)
            await eventually(lambda: left() == 0)
        finally:
            gc.enable()


async def test_current_job_is_unknown_outside_a_handler():
    with pytest.raises(UsageError, match="inside a handler"):
        current_job()


async def test_hooks_are_told_and_a_failing_one_changes_nothing(app):
    told: list[tuple] = []
    app.on_start(lambda job: told.append(("start", job.id)))
    app.on_success(lambda job, result: told.append(("success", job.id, result)))
    app.on_timeout(lambda job: told.append(("timeout", job.id)))

    @app.on_failure
    async def failed(job, error):
        await asyncio.sleep(0)
        told.append(("failure", job.id, type(error).__name__))

    @app.on_lease_lost
    def lost(job):
        told.append(("lost", job.id))

    for register in (app.on_start, app.on_success, app.on_failure, app.on_timeout, app.on_lease_lost):

        @register
        def broken(*_):
            raise RuntimeError("a hook that fails")

    @app.handler("hooked", max_attempts=1)
    async def hooked() -> str:
        match current_job().id:
            case "good":
                return "fine"
            case "bad":
                raise ValueError("no")
        await asyncio.sleep(60)
        return ""

    async with working(app):
        good = await app.enqueue(hooked.job(), id="good")
        bad = await app.enqueue(hooked.job(), id="bad")
        slow = await app.enqueue(hooked.job(), id="slow", ttr=0.05)
        gone = await app.enqueue(hooked.job(), id="gone")
        assert "fine" == await good.result(timeout=10)
        for job in (bad, slow):
            with pytest.raises(JobFailed):
                await job.result(timeout=10)
        await eventually(lambda: ("start", "gone") in told)
        await gone.cancel()
        await eventually(lambda: ("lost", "gone") in told)
        await eventually(lambda: ("failure", "slow", "TimeoutError") in told)
    assert {("start", id_) for id_ in ("good", "bad", "slow", "gone")} < set(told)
    assert {
        ("success", "good", "fine"),
        ("failure", "bad", "ValueError"),
        ("timeout", "slow"),
        ("failure", "slow", "TimeoutError"),
        ("lost", "gone"),
    } == {each for each in told if each[0] != "start"}


async def test_no_hook_tells_of_a_success_that_does_not_count(app):
    told = []
    app.on_success(lambda *_: told.append("success"))
    app.on_lease_lost(lambda *_: told.append("lost"))
    release = threading.Event()

    @app.handler("stubborn")
    def stubborn() -> str:
        release.wait(10)
        return "too late"

    async with working(app):
        job = await app.enqueue(stubborn.job())
        await becomes(job, "running")
        await job.cancel()
        release.set()
        await eventually(lambda: ["lost"] == told)
        assert "cancelled" == (await job.get()).state.name


async def test_work_without_handlers_or_for_unknown_topics_is_an_error(app):
    with pytest.raises(UsageError, match="there is no handler: decorate"):
        await app.work()

    @app.handler("known")
    async def known() -> None: ...

    with pytest.raises(UsageError, match="no handler of topic unknown; known are known"):
        await app.work(topics=["known", "unknown"])


async def test_a_worker_takes_only_the_topics_it_was_told(app):
    @app.handler("mine")
    async def mine() -> None: ...

    @app.handler("theirs")
    async def theirs() -> None: ...

    async with working(app, topics=["mine"]):
        left = await app.enqueue(theirs.job())
        later = await app.enqueue(theirs.job(), delay=0.05)
        await (await app.enqueue(mine.job(), delay=0.1)).result(timeout=10)
        assert "ready" == (await left.get()).state.name
        # What others serve is promoted all the same.
        await becomes(later, "ready")


async def test_a_handler_can_be_removed_while_working(app):
    @app.handler("going")
    async def going() -> None: ...

    @app.handler("staying")
    async def staying() -> None: ...

    async with working(app):
        await (await app.enqueue(going.job())).result(timeout=10)
        app.remove_handler("going")
        left = await app.enqueue("going", {})
        for _ in range(3):
            await (await app.enqueue(staying.job())).result(timeout=10)
        assert ("ready", 0) == ((await left.get()).state.name, (await left.get()).attempts)
        app.handlers.add(going)
        await left.result(timeout=10)


async def test_two_apps_in_one_process_do_not_meet(make_app, namespace):
    one, other = make_app(), make_app(namespace=f"{namespace}b")
    for app in (one, other):

        @app.handler("who")
        async def who(name: str = app.settings.namespace) -> str:
            return name

    async with working(one), working(other):
        jobs = [await app.enqueue("who", {}, id="same") for app in (one, other)]
        assert [namespace, f"{namespace}b"] == [await job.result(timeout=10) for job in jobs]


async def test_many_at_once_have_one_outcome_each(app):
    @app.handler("echo")
    async def echo(number: int) -> int:
        return number

    async with working(app, concurrency=100):
        jobs = await app.enqueue_many([echo.job(number) for number in range(1000)])
        assert list(range(1000)) == await asyncio.gather(*(job.result(timeout=30) for job in jobs))
