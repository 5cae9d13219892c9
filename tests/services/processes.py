"""
Handlers that run in child processes: these import this module, so it must be one of its own.
"""

from __future__ import annotations

import os
import sys
import time
from functools import wraps
from pathlib import Path

from duly import Bury, Duly, Retry, Snooze, current_job
from tests.docs.values import Money, User

app = Duly("redis://nobody.invalid")


class Panic(BaseException):
    """
    No Exception, as those that Rust code raises.
    """


@app.handler("square", run_in="process")
def square(number: int) -> int:
    return number * number


@app.handler("cube", run_in="process")
def cube(number: int) -> int:
    return number**3


@app.handler("about", run_in="process")
def about() -> dict:
    job = current_job()
    job.progress({"half": True})
    return {
        "pid": os.getpid(),
        "id": job.id,
        "topic": job.topic,
        "attempt": job.attempt,
        "revision": job.revision,
        "context": job.context,
        "cancelled": job.cancelled,
        "token": job.token,
        "remaining": job.remaining(),
    }


@app.handler("sleep", run_in="process", ttr=60, max_attempts=1)
def sleep(path: str, seconds: float) -> str:
    Path(path).write_text(str(os.getpid()))
    time.sleep(seconds)
    Path(path).write_text("finished")
    return "finished"


@app.handler("end", run_in="process", max_attempts=2)
def end(how: str) -> object:
    match how:
        case "raise":
            raise KeyError("in a child")
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit("enough")
        case "panic":
            raise Panic("unwrapped nothing")
        case "snooze":
            return Snooze(0.01) if not Path(current_job().context["path"]).exists() else "woke"
        case "retry":
            raise Retry(0.01, "again, please")
        case "bury":
            return Bury("enough")
        case "unserialisable":
            return object()
        case "progress":
            current_job().progress("x" * 10_000)
    return None


@app.handler("fork", run_in="process", max_attempts=1)
def fork(path: str) -> None:
    # It inherits the pipe to the worker, and is not killed with its parent.
    child = os.fork()
    if child:
        Path(path).write_text(str(child))
    time.sleep(600)


@app.handler("linger", run_in="process", concurrency=1)
def linger(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


@app.handler("tell", run_in="process")
def tell(card: str) -> None:
    raise ValueError(f"no such card: {card}")


@app.handler("lone", max_attempts=8)
def lone(how: str, path: str = "") -> int:
    match how:
        case "die":
            os._exit(3)
        case "raise" if current_job().crashes:
            raise ValueError("a failure like any other")
        case "meet":
            Path(path, current_job().id).touch()
            while len(list(Path(path).iterdir())) < 3:
                time.sleep(0.01)
    return os.getpid()


@app.handler("staying", run_in="thread")
def staying() -> int:
    return os.getpid()


@app.handler("awaited")
async def awaited() -> int:
    return os.getpid()


def _seen(fn):
    @wraps(fn)
    def within(*args):
        return fn(*args)

    return within


@app.handler("decorated")
@_seen
def decorated() -> int:
    return os.getpid()


renamed = app.handler("renamed")(os.getpid)


app.codec.register(Money, encode=lambda money: money.cents, decode=Money)


@app.handler("collect", run_in="process")
def collect() -> None:
    current_job().progress({"got": Money(5)})


@app.handler("rename", run_in="process")
def rename(user: User, name: str) -> User | None:
    return user.model_copy(update={"name": name}) if name else None


@app.handler("awaits", run_in="process")
def awaits():
    async def within() -> str:
        return current_job().topic

    return within()
