"""
The types of handlers behind decorators, and of what comes back.  Checked, not run.
"""

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, assert_type

from pydantic import BaseModel

from duly import Codec, Duly, DulyError, JobHandle, NewJob
from duly.handlers import AsyncHandler, SyncHandler
from duly.sync.twin import SyncJobHandle

P = ParamSpec("P")
R = TypeVar("R")


class User(BaseModel):
    name: str


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


codec = Codec()
codec.register(Money, encode=lambda money: money.cents, decode=Money)
app = Duly(codec=codec)
assert_type(app.codec, Codec)


def timed(fn: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return fn(*args, **kwargs)

    return wrapper


def logged(fn: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return fn(*args, **kwargs)

    return wrapper


@app.handler("find")
async def find(user_id: int) -> User:
    return User(name=str(user_id))


@app.handler("find.timed")
@timed
async def find_timed(user_id: int, *, strict: bool = False) -> User:
    return User(name=f"{user_id} {strict}")


@app.handler("find.logged")
@logged
async def find_logged(user_id: int) -> User | None:
    return None


@app.handler("count.logged")
@logged
def count(text: str) -> int:
    return len(text)


def decorators_keep_the_kind_of_a_handler() -> None:
    assert_type(find_timed.job(1, strict=True), NewJob[User])
    assert_type(find_timed(1), Coroutine[Any, Any, User])  # type: ignore[unused-coroutine]
    assert_type(find_logged.job(1), NewJob[User | None])
    assert_type(count("a"), int)
    takes_async(find)
    takes_async(find_timed)
    takes_sync(count)
    takes_async(count)  # type: ignore[arg-type]
    takes_sync(find_timed)  # type: ignore[arg-type]
    find_timed.job("1")  # type: ignore[arg-type]
    find_timed.job(1, strikt=True)  # type: ignore[call-arg]


def takes_async(handler: AsyncHandler[..., User]) -> None: ...


def takes_sync(handler: SyncHandler[..., int]) -> None: ...


async def results_have_the_type_that_the_handler_returns() -> None:
    assert_type(await (await app.enqueue(find.job(1))).result(), User)
    assert_type(await (await app.enqueue(find_timed.job(1))).result(), User)
    assert_type(await app.enqueue_many([find.job(1), find.job(2)]), list[JobHandle[User] | DulyError])
    assert_type(await app.enqueue_many(find.job(n) for n in range(3)), list[JobHandle[User] | DulyError])
    assert_type(app.job(find, "a"), JobHandle[User])
    assert_type(app.job(count, "a"), JobHandle[int])
    assert_type(app.job("find", "a"), JobHandle[Any])
    assert_type(await app.job(find_timed, "a").result(), User)


def blocking_results_too() -> None:
    assert_type(app.sync.enqueue(find.job(1)).result(), User)
    assert_type(app.sync.enqueue_many([count.job("a")]), list[SyncJobHandle[int] | DulyError])
    assert_type(app.sync.job(find_logged, "a"), SyncJobHandle[User | None])
    assert_type(app.sync.job("find", "a"), SyncJobHandle[Any])


def what_is_registered_fits_its_functions() -> None:
    codec.register(Money, encode=lambda money: money.pence, decode=Money)  # type: ignore[attr-defined]
    codec.register(Money, encode=lambda money: money.cents, decode=User)  # type: ignore[arg-type]
