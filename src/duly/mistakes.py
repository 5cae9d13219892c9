"""
Mistakes that are typed first, and the sentence that says what to type instead.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
from typing import TYPE_CHECKING, Any, TypeVar

from duly.batchhandler import BatchHandler
from duly.errors import UsageError
from duly.handlers import Handler
from duly.newjob import NewJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")

MOST_SHOWN = 60  #: characters of arguments that a sentence repeats


def no_job(found: object, args: tuple[object, ...] = (), call: str = "app.enqueue") -> UsageError:
    """
    Say what to write instead of *call* with something that is no job, and with *args* behind it.
    """
    if isinstance(found, Handler | BatchHandler):
        return UsageError(f"{call} takes a job: write {call}({_call_of(found.fn, args)})")
    if inspect.iscoroutine(found):
        found.close()  # nobody will await it
        name = found.__name__
        return UsageError(f"{name}(…) calls the function here and now: write {call}({name}.job(…))")
    if inspect.isroutine(found):
        name = _name(found)
        return UsageError(
            f'{name} is no handler: decorate it with @app.handler("{name}"), then write '
            f"{call}({_call_of(found, args)})"
        )
    if hasattr(found, "requeue") and hasattr(found, "result"):
        return UsageError(
            f"{found!r} was sent already; to run it again once it has ended: await handle.requeue()"
        )
    if isinstance(found, list | tuple | set) or inspect.isgenerator(found):
        return UsageError(f"{call} takes one job: write app.enqueue_many(jobs) for many")
    return UsageError(
        f"{call} takes a job or the name of a topic, not {_kind(found)}: "
        f'write {call}(handler.job(…)) or {call}("topic", payload)'
    )


def no_jobs(found: object) -> UsageError | None:
    """
    Say what to write instead of `enqueue_many` with what has no jobs in it; None if it may have some.
    """
    if isinstance(found, NewJob):
        return UsageError(
            "enqueue_many takes many jobs: write app.enqueue(job) for one, or enqueue_many([job])"
        )
    if isinstance(found, Handler | BatchHandler):
        return UsageError(f"enqueue_many takes jobs: write app.enqueue_many([{_call_of(found.fn, ())}, …])")
    if isinstance(found, str | bytes | dict) or not hasattr(found, "__iter__"):
        also = (
            "; an async generator is read first: [job async for job in jobs]"
            if hasattr(found, "__aiter__")
            else ""
        )
        return UsageError(
            f"enqueue_many takes a list of jobs, or another iterable of them, not {_kind(found)}: "
            f"write app.enqueue_many([handler.job(…), …]){also}"
        )
    return None


def checked_jobs(jobs: Iterable[T]) -> Iterable[T]:
    """
    Return *jobs* if they can be gone through.

    Raises:
        UsageError: They cannot.
    """
    wrong = no_jobs(jobs)
    if wrong is not None:
        raise wrong
    return jobs


def check_payload(job: NewJob[Any], payload: object, more: tuple[object, ...]) -> None:
    """
    Refuse what stands behind a job, which has its arguments already.

    Raises:
        UsageError: Something does.
    """
    if payload is not None or more:
        raise UsageError(
            f"the job of {job.topic} has its arguments already: write them into handler.job(…), "
            "and options by their names"
        )


def check_one_payload(topic: str, payload: object, more: tuple[object, ...]) -> None:
    """
    Refuse a second payload.

    Raises:
        UsageError: There is one.
    """
    if more:
        raise UsageError(
            f"a job by the name of its topic has one payload, which may be a list or a dict: "
            f'write app.enqueue("{topic}", [{_shown((payload, *more))}])'
        )


def needs_topic(method: F) -> F:
    """
    Refuse the decorator *method* without its brackets, without a topic, or with unknown options.
    """
    name = method.__name__
    known = [
        each.name for each in inspect.signature(method).parameters.values() if each.kind is each.KEYWORD_ONLY
    ]

    @functools.wraps(method)
    def checked(self: object, *args: Any, **options: Any) -> Any:
        topic = args[0] if args else options.get("topic")
        if topic is None:
            raise UsageError(f'@app.{name} needs a topic: write @app.{name}("mail.welcome")')
        if callable(topic):
            raise UsageError(f'@app.{name} needs a topic: write @app.{name}("{_name(topic)}")')
        if len(args) > 1:
            raise UsageError(f"@app.{name} takes one topic, and options by their names: {', '.join(known)}")
        for option in options:
            if option != "topic" and option not in known:
                near = difflib.get_close_matches(option, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise UsageError(f"@app.{name} has no option {option}; {hint}")
        return method(self, *args, **options)

    return checked  # type: ignore[return-value]  # with the signature of what it wraps


def needs_handler(function: F) -> F:
    """
    Refuse an endpoint without a handler.
    """

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        if len(args) < 2 and "handler" not in options:
            name = function.__name__
            raise UsageError(
                f"{name} needs a handler, or the name of a topic: "
                f'write {name}("/orders", handler, to=…, queue=…)'
            )
        return function(*args, **options)

    return checked  # type: ignore[return-value]  # with the signature of what it wraps


def _call_of(fn: object, args: tuple[object, ...]) -> str:
    return f"{_name(fn)}.job({_shown(args)})"


def _shown(args: tuple[object, ...]) -> str:
    """
    Arguments as they would be typed, if that is short.
    """
    if not all(arg is None or isinstance(arg, str | int | float) for arg in args):
        return "…"
    text = ", ".join(
        json.dumps(arg, ensure_ascii=False) if isinstance(arg, str) else repr(arg) for arg in args
    )
    return text if 0 < len(text) <= MOST_SHOWN else "…"


def _name(fn: object) -> str:
    name = getattr(fn, "__name__", "")
    return name if name.isidentifier() else "handler"


def _kind(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"
