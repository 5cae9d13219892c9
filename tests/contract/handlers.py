"""
Handlers of the contract: what the workers of every face run, in this process or in another.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import date, datetime  # noqa: TC003  # handlers are declared with them
from ipaddress import IPv4Address  # noqa: TC003  # likewise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
from pydantic import Field

from duly import Bury, Fixed, Retry, Snooze, current_context, current_job
from duly.handlers import Handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly import Duly

POLL_S = 0.01

_declared: list[tuple[str, dict[str, Any], Callable[..., Any]]] = []
_handlers = Handlers()


def handler(topic: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """
    Note a handler for every app that `declare` is given, and return one that describes jobs.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        _declared.append((topic, options, fn))
        return _handlers.handler(topic, **options)(fn)

    return decorate


def declare(app: Duly) -> Duly:
    """
    Give an app all handlers of the contract.
    """
    for topic, options, fn in _declared:
        app.handler(topic, **options)(fn)
    return app


@dataclass
class Parcel:
    """
    What `weigh` takes and returns.
    """

    name: str
    grams: int


@handler("add")
async def add(left: int, right: int = 0) -> int:
    return left + right


@handler("nothing")
async def nothing() -> None:
    """
    Succeed, and return nothing.
    """


@handler("block")
def block(text: str) -> str:
    """
    Run in a thread: it is no coroutine.
    """
    return text.upper()


@handler("weigh")
async def weigh(parcel: Parcel) -> Parcel:
    return Parcel(parcel.name, parcel.grams + 1)


class Person(pydantic.BaseModel):
    """
    What `hire` takes and returns.
    """

    name: str
    since: datetime | date = Field(alias="Since")


@handler("hire")
async def hire(
    person: Person, names: dict[int, str], address: IPv4Address | Path
) -> tuple[Person, dict[int, str]]:
    return person.model_copy(update={"name": names[len(names)]}), names | {0: str(address)}


@handler("tell")
async def tell(said: Any = None) -> dict[str, Any]:
    """
    Return what the handler knows of its run.
    """
    job = current_job()
    return {
        "said": said,
        "topic": job.topic,
        "id": job.id,
        "attempt": job.attempt,
        "due_ms": job.due_ms,
        "context": dict(current_context()),
    }


@handler("fail", max_attempts=1)
async def fail(message: str = "boom") -> None:
    raise ValueError(message)


@handler("flaky", max_attempts=3, backoff=Fixed(0.01))
async def flaky(failures: int) -> int:
    """
    Fail so many times, then return the number of the attempt.
    """
    attempt = current_job().attempt
    if attempt <= failures:
        raise ValueError(f"attempt {attempt} failed")
    return attempt


@handler("again", max_attempts=2, backoff=Fixed(3600))
async def again(delay: float) -> int:
    """
    Ask to be run again after *delay*, whatever the backoff, then return the number of the attempt.
    """
    attempt = current_job().attempt
    if attempt == 1:
        raise Retry(delay, "not yet")
    return attempt


@handler("bury")
async def bury(reason: str) -> None:
    raise Bury(reason)


@handler("snooze")
async def snooze(until_ms: int) -> int:
    """
    Snooze until a time is past, then return the number of the attempt.
    """
    if time.time() * 1000 < until_ms:
        raise Snooze(0.02)
    return current_job().attempt


@handler("nap")
async def nap(seconds: float) -> None:
    raise Snooze(seconds)


@handler("unstorable", backoff=Fixed(0.01))
async def unstorable(*, large: bool = False) -> object:
    """
    Return what JSON has no form for, or more of it than a result may be.
    """
    return "x" * 300_000 if large else object()


@handler("unstorable.block", backoff=Fixed(0.01))
def unstorable_block() -> object:
    """
    Do the same in a thread.
    """
    return object()


@handler("hold", max_attempts=1)
async def hold(until: str, told: str = "") -> str:
    """
    Run until the file *until* exists; write to the file *told* if the run is stopped before.
    """
    try:
        while not Path(until).exists():
            await asyncio.sleep(POLL_S)
    except asyncio.CancelledError:
        if told:
            Path(told).write_text("stopped", "utf-8")
        raise
    return "held"


@handler("slow", max_attempts=1, ttr=0.2)
async def slow(until: str) -> str:
    """
    Run until the file *until* exists, for a fifth of a second at most.
    """
    while not Path(until).exists():
        await asyncio.sleep(POLL_S)
    return "in time"


@handler("report", max_attempts=1)
async def report(values: list[Any], until: str) -> str:
    """
    Report progress, value by value, then run until the file *until* exists.
    """
    job = current_job()
    for value in values:
        await job.progress(value)
    while not Path(until).exists():
        await asyncio.sleep(POLL_S)
    return "done"
