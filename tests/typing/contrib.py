"""
What a type checker must see of the helpers for frameworks, and must refuse.  Checked, not run.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Any, assert_type

from fastapi import Depends, FastAPI
from flask import Flask

from duly import Duly, DulyError, JobHandle, NewJob
from duly.contrib.dependencies import inject
from duly.contrib.django import aenqueue_on_commit, enqueue_on_commit
from duly.contrib.django import app as django_app
from duly.contrib.fastapi import lifespan, opened
from duly.contrib.flask import init_app, jobs
from duly.job import JobKey
from duly.sync.twin import SyncJobHandle

queue = Duly()


class User:
    name = ""


class Session:
    def get(self, user_id: int) -> User:
        return User()


async def get_session() -> AsyncIterator[Session]:
    yield Session()


@queue.handler("find")
async def find(user_id: int) -> User:
    return User()


@queue.handler("count")
def count(text: str) -> int:
    return len(text)


@queue.handler("find.injected")
@inject
async def find_injected(user_id: int, session: Annotated[Session, Depends(get_session)]) -> User:
    return session.get(user_id)


@queue.handler("count.injected")
@inject(api=FastAPI())
def count_injected(text: str, session: Annotated[Session, Depends(Session)]) -> int:
    return len(text)


async def jobs_of_several_handlers_are_sent_together() -> None:
    handles: list[JobHandle[User | int] | DulyError] = await queue.enqueue_many([find.job(1), count.job("a")])
    blocking: list[SyncJobHandle[User | int] | DulyError] = queue.sync.enqueue_many(
        [find.job(1), count.job("a")]
    )
    for handle in handles:
        if not isinstance(handle, DulyError):
            assert_type(await handle.result(), User | int)
    for each in blocking:
        if not isinstance(each, DulyError):
            assert_type(each.result(), User | int)
    await queue.enqueue_many([find.job(1), "count"])  # type: ignore[arg-type]
    await queue.enqueue_many([find.job(1), count])  # type: ignore[arg-type]
    await queue.enqueue_many(find.job(1))  # type: ignore[arg-type]


async def django_sends_once_the_transaction_is_committed() -> None:
    assert_type(django_app, Duly)
    assert_type(enqueue_on_commit(find.job(1), using="other", delay="3h"), JobKey)
    assert_type(enqueue_on_commit("find", {"user_id": 1}, id="a"), JobKey)
    assert_type(await aenqueue_on_commit(find.job(1), using="other", delay=60), JobKey)
    assert_type(await aenqueue_on_commit("find", {"user_id": 1}), JobKey)
    enqueue_on_commit(find.job("1"))  # type: ignore[arg-type]
    enqueue_on_commit(find)  # type: ignore[arg-type]
    enqueue_on_commit(find.job(1), dealy=3)  # type: ignore[call-arg]
    enqueue_on_commit(find.job(1), using=1)  # type: ignore[arg-type]
    await aenqueue_on_commit(find.job("1"))  # type: ignore[arg-type]
    await aenqueue_on_commit(find)  # type: ignore[arg-type]
    await aenqueue_on_commit(find.job(1), dealy=3)  # type: ignore[call-arg]
    await enqueue_on_commit(find.job(1))  # type: ignore[misc]


async def an_injected_handler_keeps_its_result() -> None:
    # Which of its parameters are the payload is known when it runs: those are not checked here.
    assert_type(find_injected.job(1), NewJob[User])
    assert_type(count_injected.job("a"), NewJob[int])
    assert_type(await find_injected(1, session=Session()), User)
    assert_type(count_injected("a"), int)
    assert_type(await (await queue.enqueue(find_injected.job(1))).result(), User)
    inject("find")  # type: ignore[call-overload]
    inject(api=queue)  # type: ignore[call-overload]


async def fastapi_opens_an_app_for_its_life() -> None:
    FastAPI(lifespan=lifespan(queue))
    FastAPI(lifespan=lifespan(queue, work=True, concurrency=4, topics=["find"], tracebacks=True))
    async with opened(queue, work=True, topics=["find"]):
        pass
    lifespan("redis://localhost")  # type: ignore[arg-type]
    lifespan(queue, wrok=True)  # type: ignore[call-arg]
    lifespan(queue, work=True, topics=[find])  # type: ignore[list-item]


def flask_has_an_app() -> None:
    init_app(Flask("shop"), queue)
    assert_type(jobs(), Duly)
    assert_type(jobs().sync.enqueue(count.job("a")).result(), int)
    assert_type(jobs().sync.enqueue("count", {"text": "a"}), SyncJobHandle[Any])
    init_app(queue, Flask("shop"))  # type: ignore[arg-type]
    init_app(Flask("shop"))  # type: ignore[call-arg]
