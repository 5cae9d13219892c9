"""
Middleware around enqueue and around handlers, wherever they run.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar

import pytest

from duly import Duly, JobFailed, JobHandle, QueueFull, Retry, UsageError, current_context, current_job
from duly.handlers import new_job
from tests.services import processes
from tests.services.conftest import becomes, tally, working

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


# -- around enqueue ---------------------------------------------------------------------------------------


async def test_middleware_around_enqueue_runs_in_the_order_it_was_added_and_may_change_options(app):
    seen = []

    @app.around_enqueue
    async def outer(job, call_next):
        seen.append("outer")
        handle = await call_next(job.options(context={"tenant": "acme"}, id="from-outer"))
        seen.append(f"sent {handle.id}")
        return handle

    @app.around_enqueue
    async def inner(job, call_next):
        seen.append(f"inner {job.id}")
        return await call_next(job.options(context=job.context | {"region": "eu"}))

    handle = await app.enqueue("greet")
    assert ["outer", "inner from-outer", "sent from-outer"] == seen
    assert {"tenant": "acme", "region": "eu"} == (await handle.get()).envelope.context


async def test_middleware_around_enqueue_may_refuse(app):
    @app.around_enqueue
    async def guard(job, call_next):
        if job.topic == "forbidden":
            raise PermissionError("not this one")
        if job.topic == "full":
            raise QueueFull("enough for today")
        return await call_next(job)

    with pytest.raises(PermissionError, match="not this one"):
        await app.enqueue("forbidden", id="a")
    forbidden, full, fine = await app.enqueue_many(
        [job_of(app, topic).options(id="a") for topic in ("forbidden", "full", "fine")]
    )
    assert isinstance(forbidden, UsageError)
    assert isinstance(forbidden.__cause__, PermissionError)
    assert "refused by middleware: PermissionError: not this one" in str(forbidden)
    assert isinstance(full, QueueFull)
    assert fine.created
    views = await app.views()
    assert ["fine"] == await views.topics()


def job_of(app: Duly, topic: str):
    return new_job(topic, None, app.settings.limits)


async def test_many_jobs_go_through_middleware_in_their_order(app):
    @app.around_enqueue
    async def tag(job, call_next):
        return await call_next(job.options(context={"tag": job.id}))

    outcomes = await app.enqueue_many([job_of(app, "t").options(id=f"n{number}") for number in range(2_500)])
    assert [f"n{number}" for number in range(2_500)] == [each.id for each in outcomes]
    assert {"tag": "n2499"} == (await outcomes[-1].get()).envelope.context


async def test_middleware_that_forgets_to_return_the_handle_is_told(app):
    @app.around_enqueue
    async def forgetful(job, call_next):
        await call_next(job)

    with pytest.raises(UsageError, match="forgetful returned None: return what call_next returned"):
        await app.enqueue("greet")


async def test_middleware_may_answer_with_another_job(app):
    first = await app.enqueue("greet", id="first")

    @app.around_enqueue
    async def same(job, call_next):
        return first

    assert first is await app.enqueue("greet", id="second")
    assert isinstance(first, JobHandle)


@pytest.mark.parametrize("kind", ["around_enqueue", "around_handler"])
async def test_a_plain_function_is_no_middleware(app, kind):
    with pytest.raises(UsageError, match=f"{kind} takes an async function"):
        getattr(app, kind)(lambda job, call_next: call_next(job))

    async def bare():
        pass

    with pytest.raises(UsageError, match=rf"{kind} calls fn\(job, call_next\)"):
        getattr(app, kind)(bare)


async def test_the_blocking_twin_goes_through_the_same_middleware(app):
    @app.around_enqueue
    async def tag(job, call_next):
        return await call_next(job.options(id="tagged"))

    handle = await asyncio.to_thread(app.sync.enqueue, "greet")
    assert "tagged" == handle.id
    await asyncio.to_thread(app.sync.close)


# -- around handlers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["loop", "thread", "process"])
async def test_middleware_sees_the_job_and_its_result_and_may_change_it(app, place):
    seen = []

    @app.around_handler
    async def outer(job, call_next):
        assert job is current_job()
        seen.append(("outer", job.topic, job.attempt))
        result = await call_next()
        seen.append(("outer", result))
        return result + 1

    @app.around_handler
    async def inner(job, call_next):
        result = await call_next()
        seen.append(("inner", result))
        return result * 10

    handler = add(app, place)
    async with working(app):
        assert 91 == await (await app.enqueue(handler.job(3))).result(timeout=60)
    assert [("outer", handler.topic, 1), ("inner", 9), ("outer", 90)] == seen


def add(app: Duly, place: str):
    if place == "process":
        app.handlers.add(processes.square)
        return processes.square
    if place == "thread":

        @app.handler("square.thread")
        def square_thread(number: int) -> int:
            return number * number

        return square_thread

    @app.handler("square.loop")
    async def square_loop(number: int) -> int:
        return number * number

    return square_loop


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_middleware_sees_what_was_raised_and_may_plan_another_ending(app, place):
    seen = []

    @app.around_handler
    async def patient(job, call_next):
        try:
            return await call_next()
        except ConnectionError as error:
            seen.append(str(error))
            raise Retry(delay=0.01) from error

    def body() -> int:
        if current_job().attempt == 1:
            raise ConnectionError("away")
        return current_job().attempt

    async def async_body() -> int:
        return body()

    handler = app.handler("flaky")(body if place == "thread" else async_body)
    async with working(app):
        assert 2 == await (await app.enqueue(handler.job())).result(timeout=30)
    assert ["away"] == seen


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_what_middleware_raises_is_a_failed_attempt(app, place):
    ran = []

    @app.around_handler
    async def broken(job, call_next):
        raise ValueError("middleware is broken")

    handler = app.handler("t", max_attempts=1)((lambda: ran.append(1)) if place == "thread" else _append(ran))
    async with working(app):
        with pytest.raises(JobFailed, match="ValueError: middleware is broken"):
            await (await app.enqueue(handler.job())).result(timeout=30)
    assert [] == ran


def _append(ran):
    async def body() -> None:
        ran.append(1)

    return body


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_handler_cannot_be_called_twice_in_an_attempt(app, place):
    ran = []

    @app.around_handler
    async def twice(job, call_next):
        await call_next()
        return await call_next()

    handler = app.handler("t", max_attempts=1)((lambda: ran.append(1)) if place == "thread" else _append(ran))
    async with working(app):
        with pytest.raises(JobFailed, match="called twice"):
            await (await app.enqueue(handler.job())).result(timeout=30)
    assert [1] == ran


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_context_variables_that_middleware_sets_reach_the_handler(app, place):
    @app.around_handler
    async def tenant(job, call_next):
        TENANT.set(job.context["tenant"])
        return await call_next()

    async def async_body() -> str:
        return TENANT.get()

    def body() -> str:
        return TENANT.get()

    handler = app.handler("who")(body if place == "thread" else async_body)
    async with working(app):
        job = await app.enqueue(handler.job(), context={"tenant": "acme"})
        assert "acme" == await job.result(timeout=30)
    assert "nobody" == TENANT.get()


@pytest.mark.parametrize("where", ["before", "handler", "after"])
@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_time_to_run_bounds_middleware_too(app, place, where):
    left = []

    @app.around_handler
    async def slow(job, call_next):
        try:
            if where == "before":
                await asyncio.sleep(600)
            answer = await call_next()
            if where == "after":
                await asyncio.sleep(600)
        finally:
            left.append(where)
        return answer

    async def async_body() -> None:
        if where == "handler":
            await asyncio.sleep(600)

    def body() -> None:
        if where == "handler":
            current_job().cancelled_event.wait(60)

    handler = app.handler("slow", ttr=0.2, max_attempts=1)(body if place == "thread" else async_body)
    async with working(app):
        with pytest.raises(JobFailed, match="TimeoutError: ran longer than its time to run"):
            await (await app.enqueue(handler.job())).result(timeout=60)
    assert [where] == left


async def test_a_cancelled_job_stops_middleware_and_handler(app):
    left, began = [], asyncio.Event()

    @app.around_handler
    async def watch(job, call_next):
        try:
            return await call_next()
        finally:
            left.append(job.cancelled)

    @app.handler("long")
    async def long() -> None:
        began.set()
        await asyncio.sleep(600)

    async with working(app):
        job = await app.enqueue(long.job())
        await began.wait()
        await job.cancel()
        assert ("cancelled", 0, 0) == await tally(job)
        deadline = time.monotonic() + 30
        while not left and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
    assert [True] == left


async def test_middleware_does_not_see_what_cannot_be_read(app):
    seen = []

    @app.around_handler
    async def watch(job, call_next):
        seen.append(job.id)
        return await call_next()

    @app.handler("typed")
    async def typed(number: int) -> None: ...

    async with working(app):
        job = await app.enqueue("typed", {"number": "many"})
        await becomes(job, "dead")
    assert [] == seen


# -- what travels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_the_context_of_the_job_can_be_read_anywhere_below_its_handler(app, place):
    def deep_below() -> str:
        return current_context().get("tenant", "nobody")

    async def async_body() -> list[str]:
        return [deep_below(), await asyncio.to_thread(deep_below)]

    def body() -> list[str]:
        return [deep_below()]

    handler = app.handler("who")(body if place == "thread" else async_body)
    async with working(app):
        job = await app.enqueue(handler.job(), context={"tenant": "acme"})
        assert {"acme"} == set(await job.result(timeout=30))
    assert {} == current_context()
    with pytest.raises(TypeError):
        current_context()["tenant"] = "other"


HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("way", ["one", "many", "sync"])
async def test_jobs_sent_by_a_handler_inherit_trace_headers_and_what_the_app_says(app, way):
    app.inherit("tenant")

    @app.handler("second")
    async def second() -> None: ...

    async def send() -> None:
        own = {"mine": 1, "tenant": "own"} if current_job().id == "own" else None
        if way == "many":
            [_] = await app.enqueue_many([second.job().options(id=current_job().id, context=own)])
        else:
            await app.enqueue(second.job(), id=current_job().id, context=own)

    def send_sync() -> None:
        own = {"mine": 1, "tenant": "own"} if current_job().id == "own" else None
        app.sync.enqueue(second.job(), id=current_job().id, context=own)

    first = app.handler("first")(send_sync if way == "sync" else send)
    context = {"traceparent": HEADER, "tracestate": "a=1", "tenant": "acme", "secret": "stays"}
    async with working(app, topics=["first"]):
        for id_ in ("plain", "own"):
            await (await app.enqueue(first.job(), id=id_, context=context)).result(timeout=30)
        await (await app.enqueue(first.job(), id="none")).result(timeout=30)
    travelled = {id_: (await app.job("second", id_).get()).envelope for id_ in ("plain", "own", "none")}
    trace = {"traceparent": HEADER, "tracestate": "a=1"}
    assert trace | {"tenant": "acme"} == travelled["plain"].context
    assert trace | {"mine": 1, "tenant": "own"} == travelled["own"].context
    assert travelled["none"] is None or travelled["none"].context is None
    await asyncio.to_thread(app.sync.close)
