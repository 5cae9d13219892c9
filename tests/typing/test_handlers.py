"""
What a type checker must see, and must refuse.  Checked, not run.
"""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar, assert_type

from duly.backoff import Exponential, Fixed, Intervals
from duly.handlers import AsyncHandler, Handler, Handlers, Limits, NewJob, RunIn, SyncHandler, new_job
from duly.job import Order
from duly.outcome import Bury, Retry, Snooze

handlers = Handlers()


@handlers.handler(
    "mail.welcome", max_attempts=8, backoff=Exponential(base=2, cap=300), ttr=timedelta(minutes=1)
)
async def send_welcome(user_id: int, *, locale: str = "en") -> str:
    return f"{user_id} {locale}"


@handlers.handler("image.shrink", run_in="process", backoff=lambda attempt: attempt * 2.0, ttr=30)
def shrink(path: str, width: int = 100) -> float:
    return float(width)


@handlers.handler("payment.check", backoff=Intervals([10, timedelta(minutes=1)]), concurrency=50)
async def check() -> str | Snooze | Retry | Bury:
    return Snooze(timedelta(minutes=5))


T = TypeVar("T")


@handlers.handler("any")
def anything(x: int) -> Any:
    return x


@handlers.handler("any.async")
async def anything_async(x: int) -> Any:
    return x


@handlers.handler("never")
def never(x: int) -> NoReturn:
    raise ValueError(x)


@handlers.handler("first")
def first(items: list[T]) -> T:
    return items[0]


@handlers.handler("first.async")
async def first_async(items: list[T]) -> T:
    return items[0]


@handlers.handler("same")
def same(items: list[T]) -> list[T]:
    return items


async def a_plain_function_is_plain_whatever_it_says_it_returns() -> None:
    assert_type(anything(1), Any)
    anything.job(1)
    assert_type(await anything_async(1), Any)
    assert_type(same([1]), list[int])
    assert_type(await first_async([1]), int)
    takes_any_sync(anything)
    takes_any_sync(never)
    takes_any_sync(first)
    takes_any_async(first)  # type: ignore[arg-type]
    takes_any_async(never)  # type: ignore[arg-type]


def takes_any_async(handler: AsyncHandler[..., Any]) -> None: ...


def takes_any_sync(handler: SyncHandler[..., Any]) -> None: ...


async def a_handler_is_still_its_function() -> None:
    assert_type(send_welcome(42), Coroutine[Any, Any, str])  # type: ignore[unused-coroutine]
    assert_type(await send_welcome(42, locale="de"), str)
    assert_type(shrink("a.png", width=5), float)
    send_welcome("42")  # type: ignore[arg-type, unused-coroutine]
    shrink(1)  # type: ignore[arg-type]


def a_job_knows_what_its_handler_takes_and_answers() -> None:
    assert_type(send_welcome.job(42, locale="de"), NewJob[str])
    assert_type(shrink.job("a.png"), NewJob[float])
    assert_type(check.job(), NewJob[str | Snooze | Retry | Bury])
    send_welcome.job("42")  # type: ignore[arg-type]
    send_welcome.job()  # type: ignore[call-arg]
    send_welcome.job(42, "de")  # type: ignore[call-arg]
    send_welcome.job(42, lokale="de")  # type: ignore[call-arg]
    shrink.job(1)  # type: ignore[arg-type]


def a_job_fits_where_a_wider_answer_is_expected() -> NewJob[object]:
    return send_welcome.job(42)


def both_kinds_are_handlers() -> list[Handler[..., Any]]:
    assert_type(send_welcome.run_in, RunIn)
    takes_async(send_welcome)
    takes_sync(shrink)
    takes_async(shrink)  # type: ignore[arg-type]
    return [send_welcome, shrink]


def takes_async(handler: AsyncHandler[..., str]) -> None: ...


def takes_sync(handler: SyncHandler[..., float]) -> None: ...


def options_are_checked() -> None:
    job = send_welcome.job(42)
    assert_type(job.options(delay=timedelta(hours=3), id="p-1", context={"tenant": "acme"}), NewJob[str])
    assert_type(job.options(due_at=datetime.now(UTC), priority="high", on_conflict="replace"), NewJob[str])
    assert_type(job.options(backoff=Fixed(3), delay=None, retain=0).order(Limits()), Order)
    assert_type(job.options(delay="3h", ttr="1m30s", retain=timedelta(days=1)), NewJob[str])
    job.options(delay=b"3h")  # type: ignore[arg-type]
    job.options(priority="urgent")  # type: ignore[arg-type]
    job.options(dalay=3)  # type: ignore[call-arg]
    job.options(topic="other")  # type: ignore[call-arg]
    job.id = "other"  # type: ignore[misc]
    handlers.handler("a", run_in="moon")  # type: ignore[arg-type]
    handlers.handler("a", ttr="30s")
    handlers.handler("a", ttr=b"30s")  # type: ignore[arg-type]


def by_name_nothing_is_known_of_the_answer() -> None:
    assert_type(new_job("payment.check", {"payment_id": "p-1"}, Limits()), NewJob[Any])
    assert_type(handlers.get("mail.welcome"), Handler[..., Any] | None)
