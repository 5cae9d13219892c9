"""
Typed decorators: functions that can also be run later.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

from duly.backoff import DEFAULT, Backoff, Seconds, check_backoff
from duly.batchhandler import BatchHandler
from duly.binding import Binding, Call
from duly.codec import Unreadable, encode
from duly.errors import UsageError
from duly.job import check_topic
from duly.newjob import Limits, NewJob, Options, new_job
from duly.options import at_least_one, positive_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

__all__ = [
    "AsyncHandler",
    "BatchHandler",
    "Decorator",
    "Handler",
    "Handlers",
    "Limits",
    "NewJob",
    "Options",
    "RunIn",
    "SyncHandler",
    "Unreadable",
    "new_job",
]

P = ParamSpec("P")
R = TypeVar("R")

RunIn: TypeAlias = Literal["auto", "loop", "thread", "process"]


class Handler(Generic[P, R]):
    """
    A function that can also be run later: an `AsyncHandler` or a `SyncHandler`.
    """

    def __init__(
        self,
        fn: Callable[P, Any],
        topic: str,
        *,
        max_attempts: int = 5,
        backoff: Backoff = DEFAULT,
        ttr: Seconds = 300,
        concurrency: int | None = None,
        run_in: RunIn = "auto",
        max_crashes: int = 3,
        limits: Limits | None = None,
    ) -> None:
        self.fn = fn
        self.topic = check_topic(topic)  #: stored with every job, so it outlives a rename of the function
        self.max_attempts = at_least_one(max_attempts, "max_attempts")
        self.backoff = backoff
        self.ttr_ms = positive_ms(ttr, "ttr")  #: how long one run may take
        self.concurrency = None if concurrency is None else at_least_one(concurrency, "concurrency")
        self.run_in = _place_of(fn, topic, run_in)
        self._may_move = run_in == "auto"
        self.max_crashes = at_least_one(max_crashes, "max_crashes", 255)
        self.limits = limits or Limits()
        self.binding = Binding(fn, topic)
        check_backoff(backoff)
        functools.update_wrapper(cast("Any", self), fn, updated=())  # name, docstring, signature

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}: {getattr(self.fn, '__qualname__', self.fn)}>"

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R]:
        """
        Describe one call of this handler.  Sends nothing.

        Raises:
            UsageError: The function cannot be called like this, or an argument has no form in JSON.
        """
        binding = self.binding
        payload = encode(binding.arguments(args, kwargs), limit=self.limits.payload)
        binding.check(payload)
        return NewJob(self.topic, payload)

    @functools.cached_property
    def isolates(self) -> bool:
        """
        Whether a job that has to run isolated gets a process of its own.

        With `run_in="process"`, and where nothing was said, for a plain function that a new process finds.
        """
        return self.run_in == "process" or (
            self.run_in == "thread" and self._may_move and _is_found_by_import(self)
        )

    def bind(self, payload: bytes) -> Call:
        """
        Read a payload as positional and keyword arguments, converted to their annotated types.

        Raises:
            Unreadable: It is no JSON, or not what the function takes.
        """
        return self.binding.bind(payload)


class AsyncHandler(Handler[P, R]):
    """
    An async function that can also be run later.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """
        Call the function here and now.
        """
        coroutine: Coroutine[Any, Any, R] = self.fn(*args, **kwargs)
        return coroutine


class SyncHandler(Handler[P, R]):
    """
    A plain function that can also be run later.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """
        Call the function here and now.
        """
        result: R = self.fn(*args, **kwargs)
        return result


class Decorator(Protocol):
    """
    What makes a handler of a function, and keeps its types.
    """

    # A coroutine function also is a function; the first that fits is taken.
    @overload
    def __call__(  # type: ignore[overload-overlap]  # mypy takes any call for both
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandler[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncHandler[P, R]: ...


class Handlers:
    """
    The handlers of one app, by topic.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn  #: around what is added
        self._by_topic: dict[str, Handler[..., Any]] = {}
        self._batches: dict[str, BatchHandler] = {}  #: apart: no worker of single jobs ever sees them

    def handler(
        self,
        topic: str,
        *,
        max_attempts: int = 5,
        backoff: Backoff = DEFAULT,
        ttr: Seconds = 300,
        concurrency: int | None = None,
        run_in: RunIn = "auto",
        max_crashes: int = 3,
    ) -> Decorator:
        """
        Make handlers of functions and add them.

        Raises:
            UsageError: An option is wrong, the function cannot be a handler, or the topic has one already.
        """

        def decorate(fn: Callable[..., Any], /) -> Any:
            kind = AsyncHandler if _is_async(fn) else SyncHandler
            handler: Handler[..., Any] = kind(
                self.wrap(fn),
                topic,
                max_attempts=max_attempts,
                backoff=backoff,
                ttr=ttr,
                concurrency=concurrency,
                run_in=run_in,
                max_crashes=max_crashes,
                limits=self.limits,
            )
            self.add(handler)
            return handler

        return decorate

    def add(self, handler: Handler[..., Any]) -> None:
        """
        Add a handler.

        Raises:
            UsageError: Its topic has one already.
        """
        self._check_free(handler)
        self._by_topic[handler.topic] = handler

    def add_batch(self, handler: BatchHandler) -> None:
        """
        Add a batch handler.

        Raises:
            UsageError: Its topic has a handler already, of either kind.
        """
        self._check_free(handler)
        self._batches[handler.topic] = handler

    def _check_free(self, handler: Handler[..., Any] | BatchHandler) -> None:
        other = self._by_topic.get(handler.topic) or self._batches.get(handler.topic)
        if other is not None and other is not handler:
            raise UsageError(f"topic {handler.topic} has a handler already: {other!r}; remove it first")

    def remove(self, topic: str) -> None:
        """
        Remove the handler of *topic*.

        Raises:
            UsageError: There is none.
        """
        if self._by_topic.pop(topic, None) is None and self._batches.pop(topic, None) is None:
            known = ", ".join((*self._by_topic, *self._batches)) or "none"
            raise UsageError(f"topic {topic} has no handler; known are {known}")

    def get(self, topic: str) -> Handler[..., Any] | None:
        """
        Return the handler of *topic*, if there is one.
        """
        return self._by_topic.get(topic)

    def topics(self) -> list[str]:
        """
        Name the topics that have a handler, in the order in which they were added.
        """
        return list(self.served())

    def served(self) -> Collection[str]:
        """
        The same without a copy, for those who ask before every claim.
        """
        return self._by_topic.keys()

    def batches(self) -> list[BatchHandler]:
        """
        The batch handlers, in the order in which they were added.
        """
        return list(self._batches.values())


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(cast("Any", fn).__call__)


def _is_found_by_import(handler: Handler[..., Any]) -> bool:
    """
    Return whether another process gets this handler by importing its module, and nothing else happens there.
    """
    fn: Any = handler.fn
    # What was put around a function, by a framework maybe, need not be there in another process.
    if fn.__module__ == "__main__" or hasattr(fn, "__wrapped__") or not _is_main_importable():
        return False
    found: Any = sys.modules.get(fn.__module__)
    for part in getattr(fn, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is handler


@functools.cache
def _is_main_importable() -> bool:
    """
    Return whether a new process may import the main module: a program without a guard would begin again.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main.__spec__, "name", "").endswith(".__main__"):
        # It is not imported.
        return True
    try:
        return re.search(rb"__name__ *== *['\"]__main__['\"]", Path(file).read_bytes()) is not None
    except OSError:
        return False


def _place_of(fn: Callable[..., Any], topic: str, run_in: RunIn) -> RunIn:
    """
    Decide where a function runs.
    """
    if run_in not in get_args(RunIn):
        raise UsageError(f"run_in={run_in!r} must be one of {', '.join(get_args(RunIn))}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"handler of {topic}: a generator has no single answer; use a function that returns")
    if _is_async(fn):
        if run_in in ("thread", "process"):
            raise UsageError(f"handler of {topic}: an async def runs on the event loop, not in a {run_in}")
        return "loop"
    if run_in == "loop":
        raise UsageError(
            f"handler of {topic}: a plain def would block the event loop; use async def or a thread"
        )
    return "thread" if run_in == "auto" else run_in
