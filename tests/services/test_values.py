"""
Values on their way through a worker: models, wrappers of async functions, types of an application's own.
"""

from __future__ import annotations

import asyncio
import functools
from contextvars import ContextVar

import pytest

from duly import Codec, JobFailed, UsageError, current_job
from duly.codec import Unreadable
from tests.docs.values import Money, User
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, working

ADA, BOB = User(name="Ada", Id=7), User(name="Bob", Id=7)


def renamer(app, place):
    if place == "process":
        app.handlers.add(processes.rename)
        return processes.rename
    if place == "thread":

        @app.handler("rename")
        def rename_thread(user: User, name: str) -> User | None:
            return user.model_copy(update={"name": name}) if name else None

        return rename_thread

    @app.handler("rename")
    async def rename_loop(user: User, name: str) -> User | None:
        return user.model_copy(update={"name": name}) if name else None

    return rename_loop


@pytest.mark.parametrize("place", ["loop", "thread", "process"])
async def test_a_model_is_a_model_wherever_its_handler_runs(app, place):
    rename = renamer(app, place)
    seen = []

    @app.around_handler
    async def watch(job, call_next):
        seen.append(await call_next())
        return seen[-1]

    @app.on_success
    def tell(job, result):
        seen.append(result)

    async with working(app):
        assert BOB == await (await app.enqueue(rename.job(ADA, "Bob"))).result(timeout=20)
        assert None is await (await app.enqueue(rename.job(ADA, ""))).result(timeout=20)
    assert [BOB, BOB, None, None] == seen


def finder(app):
    @app.handler("find")
    async def find(id_: int) -> User:
        return User(name="Ada", Id=id_)

    return find


async def test_an_app_without_the_handler_reads_results_as_the_handler_of_its_job_says(app, make_app):
    find, other = finder(app), make_app()
    async with working(app):
        handles = [await other.enqueue(find.job(7)), *await other.enqueue_many([find.job(7)])]

        @other.around_enqueue
        async def pass_on(job, call_next):
            return await call_next(job.options(context={"tenant": "acme"}))

        handles += [await other.enqueue(find.job(7)), *await other.enqueue_many([find.job(7)])]
        handles += [other.job(find, handle.id) for handle in handles]
        assert [ADA] * 8 == [await handle.result(timeout=10) for handle in handles]
        assert {"name": "Ada", "Id": 7} == await other.job("find", handles[0].id).result(timeout=10)


async def test_the_blocking_twin_of_such_an_app_does_the_same(app, make_app):
    find, twin = finder(app), make_app().sync

    def ask():
        handles = [twin.enqueue(find.job(7)), *twin.enqueue_many([find.job(7)])]
        handles += [twin.enqueue_awaited(find.job(7)), *(twin.job(find, handle.id) for handle in handles)]
        return [handle.result(timeout=10) for handle in handles]

    async with working(app):
        assert [ADA] * 5 == await asyncio.to_thread(ask)


async def test_a_handle_reads_its_result_although_the_handler_was_removed(app):
    find = finder(app)
    async with working(app):
        sent = await app.enqueue(find.job(7))
        assert ADA == await sent.result(timeout=10)
        app.remove_handler("find")
        assert ADA == await sent.result(timeout=10) == await app.job(find, sent.id).result(timeout=10)


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def wrapped(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        TENANT.set("acme")
        return fn(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize("run_in", ["auto", "loop"])
async def test_the_body_of_a_wrapped_async_function_runs(app, run_in, middleware):
    @app.handler("greet", run_in=run_in, max_attempts=1)
    @wrapped
    @wrapped
    async def greet(name: str) -> str:
        await asyncio.sleep(0)
        if name == "nobody":
            raise ValueError("there is nobody")
        return f"{name} {current_job().topic} {TENANT.get()}"

    if middleware:

        @app.around_handler
        async def pass_on(job, call_next):
            return await call_next()

    async with working(app):
        assert "Ada greet acme" == await (await app.enqueue(greet.job("Ada"))).result(timeout=10)
        with pytest.raises(JobFailed, match="there is nobody"):
            await (await app.enqueue(greet.job("nobody"))).result(timeout=10)


async def test_a_wrapper_may_run_a_loop_of_its_own(app):
    async def greet(name: str) -> str:
        return f"hello {name}"

    @app.handler("greet")
    @functools.wraps(greet)
    def blocking(name: str) -> str:
        return asyncio.run(greet(name))

    async with working(app):
        assert "hello Ada" == await (await app.enqueue(blocking.job("Ada"))).result(timeout=10)


async def test_what_a_plain_function_returns_is_awaited_where_it_is_awaitable(app):
    async def within() -> str:
        return f"awaited in {current_job().topic}"

    @app.handler("plain")
    def plain():
        return within()

    app.handlers.add(processes.awaits)
    async with working(app):
        assert "awaited in plain" == await (await app.enqueue(plain.job())).result(timeout=10)
        assert "awaits" == await (await app.enqueue(processes.awaits.job())).result(timeout=20)


async def test_what_is_awaited_for_a_plain_function_can_be_cancelled_and_is_stopped_in_time(app):
    started, ended = asyncio.Event(), []

    async def within() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(current_job().id)

    @app.handler("plain", max_attempts=1, ttr=0.2)
    def plain():
        return within()

    async with working(app):
        late = await app.enqueue(plain.job(), id="late")
        await becomes(late, "dead")
        started.clear()
        job = await app.enqueue(plain.job(), id="cancelled", ttr=60)
        await started.wait()
        await job.cancel()
        await becomes(job, "cancelled")
    assert ["late", "cancelled"] == ended


async def test_a_result_that_would_not_come_back_is_a_failed_attempt(app):
    @app.handler("untyped", max_attempts=1)
    async def untyped():
        return {"user": ADA}

    async with working(app):
        sent = await app.enqueue(untyped.job())
        with pytest.raises(JobFailed, match=r"result\[\.\.\.\] is of type User and would arrive as dict"):
            await sent.result(timeout=10)


async def test_a_result_of_another_shape_is_told_to_the_caller(make_app):
    worker, sender = make_app(), make_app()

    @worker.handler("find")
    async def old() -> dict[str, str]:
        return {"nome": "Ada"}

    @sender.handler("find")
    async def new() -> User: ...

    async with working(worker):
        sent = await sender.enqueue(new.job())
        with pytest.raises(Unreadable, match="find is not what its handler says it returns: name: "):
            await sent.result(timeout=10)
        assert {"nome": "Ada"} == await worker.job("find", sent.id).result(timeout=10)


async def test_types_of_an_application_travel_with_its_codec(app):
    app.codec.register(Money, encode=lambda money: money.cents, decode=Money)

    @app.handler("double")
    async def double(money: Money, rest: list[Money]) -> dict[str, Money]:
        return {"twice": Money(2 * money.cents), "rest": Money(sum(each.cents for each in rest))}

    async with working(app):
        expected = {"twice": Money(10), "rest": Money(3)}
        assert expected == await (await app.enqueue(double.job(Money(5), [Money(3)]))).result(timeout=10)
        by_name = await app.enqueue("double", {"money": Money(5), "rest": [Money(3)]})
        assert expected == await by_name.result(timeout=10)
    with pytest.raises(UsageError, match="Money has no form in JSON"):
        Codec().encode(Money(5))


@pytest.mark.parametrize("place", ["loop", "thread", "process"])
async def test_progress_may_hold_types_of_an_application(app, place):
    if place == "process":
        app.handlers.add(collect := processes.collect)
    else:
        app.codec.register(Money, encode=lambda money: money.cents, decode=Money)

        async def collect_loop() -> None:
            await current_job().progress({"got": Money(5)})

        def collect_thread() -> None:
            current_job().progress({"got": Money(5)})

        collect = app.handler("collect")(collect_loop if place == "loop" else collect_thread)

    async def told():
        found = await app.job("collect", "c-1").get()
        assert b'{"got":5}' == found.progress

    @app.around_handler
    async def look(job, call_next):
        await call_next()
        await eventually(told, 20)

    async with working(app):
        await (await app.enqueue(collect.job(), id="c-1")).result(timeout=60)


async def test_the_context_holds_no_types_of_an_application_since_nothing_says_how_to_read_them(app):
    app.codec.register(Money, encode=lambda money: money.cents, decode=Money)
    with pytest.raises(
        UsageError,
        match=r"Money has no form in JSON, at context\.money; it holds what JSON has, and no types",
    ):
        await app.enqueue("collect", context={"money": Money(5)})
