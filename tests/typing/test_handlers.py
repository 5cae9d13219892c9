"""
What a type checker must see, and must refuse.  Checked, not run.
"""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

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
    job.options(delay="3h")  # type: ignore[arg-type]
    job.options(priority="urgent")  # type: ignore[arg-type]
    job.options(dalay=3)  # type: ignore[call-arg]
    job.options(topic="other")  # type: ignore[call-arg]
    job.id = "other"  # type: ignore[misc]
    handlers.handler("a", run_in="moon")  # type: ignore[arg-type]
    handlers.handler("a", ttr="30")  # type: ignore[arg-type]


def by_name_nothing_is_known_of_the_answer() -> None:
    assert_type(new_job("payment.check", {"payment_id": "p-1"}, Limits()), NewJob[Any])
    assert_type(handlers.get("mail.welcome"), Handler[..., Any] | None)
