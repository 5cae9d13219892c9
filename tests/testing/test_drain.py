"""
drain() runs what is due by the clock of the test, with the real worker on a real server.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import timedelta

import pytest

from duly import Bury, Fixed, Retry, Snooze, UsageError, current_job
from duly.services.worker import Worker
from duly.testing.draining import Drainer
from tests.services import processes


async def test_what_is_due_runs_and_what_is_not_waits_for_the_clock(duly):
    @duly.app.handler("mail")
    async def mail(user: int) -> str:
        return f"sent to {user}"

    await duly.app.enqueue(mail.job(1))
    await duly.app.enqueue(mail.job(2), delay=timedelta(hours=3))
    [ran] = await duly.drain()
    assert ("mail", 1, "succeeded", "sent to 1") == (ran.topic, ran.attempt, ran.ending, ran.result)
    duly.clock.advance(hours=3, ms=-1)
    assert () == await duly.drain()
    duly.clock.advance(ms=1)
    assert ["sent to 2"] == [ran.result for ran in await duly.drain()]
    assert () == await duly.drain()


async def test_a_retry_becomes_due_only_when_the_clock_moves(duly):
    @duly.app.handler("flaky", max_attempts=3, backoff=Fixed(60))
    async def flaky() -> None:
        raise ConnectionError("nobody there")

    await duly.app.enqueue(flaky.job(), id="a")
    [first] = await duly.drain()
    assert ("retried", timedelta(minutes=1)) == (first.ending, first.again_in)
    assert isinstance(first.error, ConnectionError)
    assert "flaky/a  attempt 1  retried, again in 0:01:00: ConnectionError: nobody there" == str(first)
    assert () == await duly.drain()
    duly.clock.advance(first.again_in)
    assert [(2, "retried")] == [(ran.attempt, ran.ending) for ran in await duly.drain()]
    duly.clock.advance(minutes=1)
    drained = await duly.drain()
    assert [(3, "dead")] == [(ran.attempt, ran.ending) for ran in drained]
    assert ["nobody there"] == [str(error) for error in drained.errors]
    assert ["dead"] == [job.state for job in duly.jobs()]


async def test_planned_endings_are_told_and_are_no_errors(duly):
    @duly.app.handler("plan")
    async def plan(ending: str) -> None:
        if ending == "snooze":
            raise Snooze(5)
        return {"retry": Retry(delay=7, reason="later"), "bury": Bury("enough")}[ending]

    for ending in ("snooze", "retry", "bury"):
        await duly.app.enqueue(plan.job(ending), id=ending)
    drained = await duly.drain(concurrency=1)
    assert [
        ("snooze", "snoozed", timedelta(seconds=5), "snoozed"),
        ("retry", "retried", timedelta(seconds=7), "retry: later"),
        ("bury", "dead", None, "buried: enough"),
    ] == [(ran.id, ran.ending, ran.again_in, ran.reason) for ran in drained]
    assert [] == drained.errors


async def test_what_handlers_enqueue_for_now_runs_in_the_same_drain(duly):
    @duly.app.handler("first")
    async def first() -> None:
        await duly.app.enqueue(second.job())

    @duly.app.handler("second")
    async def second() -> None:
        await duly.app.enqueue(second.job(), delay=1)

    await duly.app.enqueue(first.job())
    drained = await duly.drain()
    assert ["first", "second"] == [ran.topic for ran in drained]
    assert 1 == len(drained.of(second)) == len(drained.of("first"))
    duly.assert_enqueued(second, delay=1, count=1)


async def test_a_handler_may_wait_for_a_job_that_it_enqueues(duly):
    @duly.app.handler("outer")
    async def outer() -> int:
        await asyncio.sleep(0.1)  # so that the drain has looked, and found nothing
        return 1 + await (await duly.app.enqueue(inner.job())).result(timeout=30)

    @duly.app.handler("inner")
    async def inner() -> int:
        return 1

    await duly.app.enqueue(outer.job())
    assert [1, 2] == [ran.result for ran in await duly.drain()]


async def test_a_job_that_enqueues_itself_is_stopped_with_a_sentence(duly):
    @duly.app.handler("again")
    async def again() -> None:
        await duly.app.enqueue(again.job())

    await duly.app.enqueue(again.job())
    with pytest.raises(
        UsageError, match=r"has run 25 jobs and more are due \(\d+ of again\): does a handler"
    ):
        await duly.drain(limit=25)
    # Nothing is left running, so that the test can look around.
    assert [] == duly.jobs(state="running")
    duly.app.remove_handler("again")

    @duly.app.handler("again")
    async def no_more() -> None:
        pass

    assert 1 <= len(await duly.drain())


async def test_as_many_as_the_limit_may_run(duly):
    @duly.app.handler("n")
    async def n() -> None: ...

    await duly.app.enqueue_many([n.job() for _ in range(30)])
    assert 30 == len(await duly.drain(limit=30))


async def test_errors_are_raised_where_that_is_asked_for(duly):
    ended = []

    @duly.app.handler("bad")
    async def bad(number: int) -> None:
        if number == 1:
            raise KeyError("no such user")
        ended.append(number)

    for number in (1, 2):
        await duly.app.enqueue(bad.job(number), id=f"n{number}")
    with pytest.raises(KeyError, match="no such user") as caught:
        await duly.drain(raises=True)
    assert [2] == ended
    assert ["raised by bad/n1  attempt 1  retried"] == [note[:36] for note in caught.value.__notes__]


async def test_what_cannot_be_read_is_told_as_dead(duly):
    @duly.app.handler("mail")
    async def mail(user: int) -> None: ...

    await duly.app.enqueue("mail", {"usr": 1})
    [ran] = await duly.drain()
    assert ("dead", "unreadable") == (ran.ending, ran.reason)
    assert "unknown field; the handler takes user" in str(ran.error)


async def test_a_result_that_is_no_json_is_told_as_dead(duly):
    @duly.app.handler("odd")
    async def odd() -> object:
        return object()

    await duly.app.enqueue(odd.job())
    [ran] = await duly.drain()
    assert ("dead", True) == (ran.ending, "cannot be written as JSON" in ran.reason)


async def test_a_run_that_was_cancelled_meanwhile_is_told_as_lost(duly):
    @duly.app.handler("slow")
    async def slow() -> None:
        await duly.app.job("slow", current_job().id).cancel()

    await duly.app.enqueue(slow.job())
    assert ["lost"] == [ran.ending for ran in await duly.drain()]
    assert ["cancelled"] == [job.state for job in duly.jobs()]


async def test_handlers_in_threads_and_processes_run_too(duly):
    @duly.app.handler("where")
    def where() -> str:
        return threading.current_thread().name

    duly.app.handlers.add(processes.about)
    await duly.app.enqueue(where.job())
    await duly.app.enqueue(processes.about.job(), id="b")
    drained = await duly.drain()
    assert ["duly-handler"] == [ran.result for ran in drained.of("where")]
    assert ["b"] == [ran.result["id"] for ran in drained.of("about")]


async def test_a_handler_that_exits_is_told_like_any_other_failure(duly):
    @duly.app.handler("exit", max_attempts=1)
    async def exit_() -> None:
        sys.exit("enough")

    @duly.app.handler("fine")
    async def fine() -> str:
        return "ran"

    await duly.app.enqueue(exit_.job())
    await duly.app.enqueue(fine.job())
    drained = await duly.drain()
    [left] = drained.of(exit_)
    assert ("dead", "SystemExit: enough") == (left.ending, left.reason)
    assert ["ran"] == [ran.result for ran in drained.of(fine)]
    assert [SystemExit] == [type(error) for error in drained.errors]


async def test_time_to_run_counts_real_time(duly):
    @duly.app.handler("stuck", ttr=0.05, max_attempts=1)
    async def stuck() -> None:
        await asyncio.Event().wait()

    await duly.app.enqueue(stuck.job())
    [ran] = await duly.drain()
    assert ("dead", TimeoutError) == (ran.ending, type(ran.error))


async def test_hooks_are_called(duly):
    told = []
    duly.app.on_success(lambda job, result: told.append((job.id, result)))

    @duly.app.handler("mail")
    async def mail() -> int:
        return 7

    await duly.app.enqueue(mail.job(), id="a")
    await duly.drain()
    assert [("a", 7)] == told


async def test_without_handlers_there_is_nothing_to_drain_with(duly):
    with pytest.raises(UsageError, match="the app has no handler: import the modules"):
        await duly.drain()


async def test_drain_needs_the_clock_of_the_test(duly_for, duly_app):
    bed = duly_for(duly_app, clock="server")
    with pytest.raises(UsageError, match='with clock="server" now does not stand still'):
        await bed.drain()
    with pytest.raises(UsageError, match="nobody can move that"):
        _ = bed.clock


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": "many"}, {"concurrency": 0}])
async def test_a_wrong_bound_is_refused(duly, wrong):
    [name] = wrong
    with pytest.raises(UsageError, match=f"{name}=.* must be a whole number"):
        await duly.drain(**wrong)


@pytest.mark.parametrize("name", ["_decide", "_lose"])
def test_what_the_drainer_changes_is_there_to_be_changed(name):
    # A worker that calls them otherwise would run without being noticed.
    assert vars(Drainer)[name] is not vars(Worker)[name]
