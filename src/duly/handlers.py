"""
Typed decorators: functions that can also be run later.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import re
import sys
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

from duly.backoff import Backoff, check_backoff
from duly.batchhandler import BatchHandler
from duly.binding import (
    Binding,
    Call,
    WrongArgument,
    check_function,
    is_async,
    returns_awaitable,
)
from duly.codec import Codec, Unreadable
from duly.defaults import DEFAULTS, MAX_CRASHES, Defaults
from duly.errors import UsageError
from duly.job import check_topic
from duly.newjob import Limits, NewJob, Options, ResultReader, new_job
from duly.options import at_least_one, positive_ms
from duly.outcome import Bury, Planned, Retry, Snooze
from duly.redefinition import defined_twice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping

    from opentelemetry.propagators.textmap import TextMapPropagator

    from duly.durations import Seconds

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


class _NoResult:
    """
    What no function returns.
    """


_AnyR = TypeVar("_AnyR", bound=_NoResult)  #: only a result of which a type checker knows nothing

RunIn: TypeAlias = Literal["auto", "loop", "thread", "process"]

_ENDINGS: tuple[type, ...] = (Planned, Snooze, Retry, Bury)  #: what a handler may return and no caller gets

#: What sends a job in other libraries.
_SENDS_ELSEWHERE = ("apply_async", "defer", "defer_async", "delay", "enqueue", "kiq", "send", "submit")

#: The attribute of a function that names the parameters which no payload may hold, such as dependencies.
WITHHELD = "__duly_withheld__"


class _Guarded(Binding):
    """
    The arguments of a function that has parameters of another source than its payload.
    """

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """
        Do what `Binding.arguments` does, without parameters of another source.

        Raises:
            UsageError: The function cannot be called like this.
        """
        arguments = super().arguments(args, kwargs)
        if name := self._withheld(arguments):
            raise UsageError(f"{self.topic}: argument {name} {_FROM_ELSEWHERE}")
        return arguments

    def bind(self, payload: bytes) -> Call:
        """
        Do what `Binding.bind` does; all arguments are by name, since the function has further parameters.

        Raises:
            Unreadable: The payload is no JSON, or not what the function takes.
        """
        arguments = super().arguments(*super().bind(payload))
        if name := self._withheld(arguments):
            cause = UsageError(_FROM_ELSEWHERE)
            raise WrongArgument(f"payload of {self.topic}: {name}: {cause}", name) from cause
        return (), arguments

    def _withheld(self, arguments: dict[str, Any]) -> str | None:
        return next((name for name in arguments if name in getattr(self._fn, WITHHELD)), None)


_FROM_ELSEWHERE = "comes from a dependency of the handler, and not from the payload: leave it out"


class Handler(Generic[P, R]):
    """
    A function that can also be run later: an `AsyncHandler` or a `SyncHandler`.
    """

    def __init__(
        self,
        fn: Callable[P, Any],
        topic: str,
        *,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        ttr: Seconds | None = None,
        concurrency: int | None = None,
        run_in: RunIn = "auto",
        max_crashes: int = MAX_CRASHES,
        limits: Limits | None = None,
        defaults: Defaults = DEFAULTS,
        codec: Codec | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Make a handler of *fn*; its annotations may use the local *names*.

        Raises:
            UsageError: An option is wrong, or the function cannot be a handler.
        """
        self.fn = fn
        self.registry: Handlers | None = None  #: that it was first added to
        self.entry = fn  #: what a worker calls: the function, within what a framework puts around runs
        self.topic = check_topic(topic)  #: stored with every job, so it outlives a rename of the function
        self.max_attempts = (
            defaults.max_attempts if max_attempts is None else at_least_one(max_attempts, "max_attempts")
        )
        self.backoff = defaults.backoff if backoff is None else backoff
        self.ttr_ms = (
            defaults.ttr_ms if ttr is None else positive_ms(ttr, "ttr")
        )  #: how long one run may take
        self.concurrency = None if concurrency is None else at_least_one(concurrency, "concurrency")
        self.run_in: RunIn = _place_of(fn, topic, run_in)
        self._may_move = run_in == "auto"
        self.max_crashes = at_least_one(max_crashes, "max_crashes", 255)
        self.limits = limits or Limits()
        binding = _Guarded if hasattr(fn, WITHHELD) else Binding
        self.binding = binding(fn, topic, codec=codec, names=names, never=_ENDINGS)
        check_backoff(self.backoff)
        functools.update_wrapper(cast("Any", self), fn, updated=())  # name, docstring, signature

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}: {getattr(self.fn, '__qualname__', self.fn)}>"

    def __reduce__(self) -> str:
        """
        Pickle the handler as functions are: by its name, which another process finds in its module.

        Raises:
            PicklingError: Something else has that name.
        """
        if _named(self.fn) is not self:
            raise pickle.PicklingError(
                f"the handler of {self.topic} cannot be pickled: the name of its function does not lead to "
                "it; send its topic, or decorate a function at the top of a module"
            )
        name: str = self.fn.__qualname__
        return name

    @property
    def reader(self) -> ResultReader:
        """
        How its results are read.
        """
        return ResultReader(self.binding)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R]:
        """
        Describe one call of this handler.  Sends nothing.

        Raises:
            UsageError: The function cannot be called like this, or would not get an argument as it is given.
        """
        binding = self.binding
        try:
            arguments = binding.arguments(args, kwargs)
        except UsageError as error:
            raise _with_hint(error, self, kwargs) from None
        return NewJob(
            self.topic, binding.encode(arguments, self.limits.payload), reader=ResultReader(binding)
        )

    def check_found(self) -> None:
        """
        Make sure that a new process finds this handler by its name, if it needs one.

        Raises:
            UsageError: Something else has that name.
        """
        if self.run_in == "process" and not isinstance(_named(self.fn), Handler):
            name = f"{self.fn.__module__}.{self.fn.__qualname__} as a handler"
            raise UsageError(f"handler of {self.topic}: {_NOT_FOUND.format(name)}")

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

    def encode_result(self, result: object) -> bytes:
        """
        Write what the function returned; nothing is written of None.

        Raises:
            UsageError: It has no form in JSON, is too large, or would be read as something else.
        """
        return b"" if result is None else self.binding.encode_result(result, self.limits.result)


class _SentElsewhere:
    """
    A method that handlers of other libraries have, and ours do not.

    Not `Handler.__getattr__`: with that, Python reads every attribute of a handler the slow way.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, handler: Any, owner: type) -> NoReturn:
        name = "handler" if handler is None else handler.__name__
        msg = f"a handler has no {self._name}(): write await app.enqueue({name}.job(…))"
        raise AttributeError(msg, name=self._name)


for _name in _SENDS_ELSEWHERE:
    setattr(Handler, _name, _SentElsewhere(_name))


class AsyncHandler(Handler[P, R]):
    """
    A function that returns an awaitable, as an async one does, and can also be run later.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """
        Call the function here and now.
        """
        answer = self.fn(*args, **kwargs)
        # A wrapper may return another awaitable, or have run a loop of its own.
        wrap = inspect.isawaitable(answer) and not inspect.iscoroutine(answer)
        coroutine: Coroutine[Any, Any, R] = _awaited(answer) if wrap else answer
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

    # What returns an awaitable also is a function; the first that fits is taken.  A result of which nothing
    # is known (`Any`, `NoReturn`, none said, a type variable) fits them all: its function is a plain one.
    @overload
    def __call__(self, fn: Callable[P, _AnyR], /) -> SyncHandler[P, _AnyR]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # mypy takes any call for both
        self, fn: Callable[P, Awaitable[R]], /
    ) -> AsyncHandler[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncHandler[P, R]: ...


class Handlers:
    """
    The handlers of one app, by topic.
    """

    def __init__(
        self, limits: Limits | None = None, codec: Codec | None = None, defaults: Defaults = DEFAULTS
    ) -> None:
        self.limits = limits or Limits()
        self.defaults = defaults  #: of handlers that say nothing else
        self.codec = codec or Codec()
        self.wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn  #: makes the entries
        self.propagator: TextMapPropagator | None = None  #: of OpenTelemetry, that a child process reads with
        self._by_topic: dict[str, Handler[..., Any]] = {}
        self._batches: dict[str, BatchHandler] = {}  #: apart: no worker of single jobs ever sees them

    def handler(
        self,
        topic: str,
        *,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        ttr: Seconds | None = None,
        concurrency: int | None = None,
        run_in: RunIn = "auto",
        max_crashes: int = MAX_CRASHES,
    ) -> Decorator:
        """
        Make handlers of functions and add them.

        Raises:
            UsageError: An option is wrong, the function cannot be a handler, or the topic has one already.
        """

        def decorate(fn: Callable[..., Any], /) -> Any:
            if isinstance(fn, Handler):
                fn = fn.fn  # one function may serve several topics
            check_function(fn, f"handler of {topic}")
            kind = AsyncHandler if is_async(fn) else SyncHandler
            frame = sys._getframe(1)  # noqa: SLF001  # where classes are defined that annotations name
            handler: Handler[..., Any] = kind(
                fn,
                topic,
                max_attempts=max_attempts,
                backoff=backoff,
                ttr=ttr,
                concurrency=concurrency,
                run_in=run_in,
                max_crashes=max_crashes,
                limits=self.limits,
                defaults=self.defaults,
                codec=self.codec,
                names=None if frame.f_locals is frame.f_globals else frame.f_locals,
            )
            handler.entry = self.wrap(fn)
            self.add(handler)
            return handler

        return decorate

    def add(self, handler: Handler[..., Any]) -> None:
        """
        Add a handler; one of the same function takes the place of the earlier one.

        Raises:
            UsageError: Its topic has one of another function already.
        """
        self._check_free(handler)
        self._by_topic[handler.topic] = handler
        if handler.registry is None:
            handler.registry = self

    def add_batch(self, handler: BatchHandler) -> None:
        """
        Add a batch handler; one of the same function takes the place of the earlier one.

        Raises:
            UsageError: Its topic has one of another function already, of either kind.
        """
        self._check_free(handler)
        self._batches[handler.topic] = handler

    def _check_free(self, handler: Handler[..., Any] | BatchHandler) -> None:
        other = self._by_topic.get(handler.topic) or self._batches.get(handler.topic)
        if other is None or other is handler:
            return
        if not _is_made_again(other, handler):
            raise UsageError(f"topic {handler.topic} has a handler already: {other!r}; remove it first")
        if where := defined_twice(other.fn, handler.fn):
            raise UsageError(
                f"topic {handler.topic} has two handlers of the same name, in {where}; rename one of them "
                "and give it a topic of its own"
            )

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


def _with_hint(error: UsageError, handler: Handler[..., Any], kwargs: dict[str, Any]) -> UsageError:
    """
    Add where an option belongs that was given to the function.
    """
    given = [name for name in kwargs if name in Options.__annotations__]
    if not given:
        return error
    fn = getattr(handler.fn, "__name__", "handler")
    return UsageError(f"{error}; an option stands beside the job: app.enqueue({fn}.job(…), {given[0]}=…)")


def _is_made_again(old: Handler[..., Any] | BatchHandler, new: Handler[..., Any] | BatchHandler) -> bool:
    """
    Return whether both are of the same function, by its name: a cell of a notebook ran again, or a reload.
    """
    if isinstance(old, BatchHandler) != isinstance(new, BatchHandler):
        return False
    # All lambdas of a module have one name, and other callables have none.
    name = getattr(old.fn, "__qualname__", "<lambda>")
    is_named = not name.endswith("<lambda>")
    return is_named and name == getattr(new.fn, "__qualname__", "") and old.fn.__module__ == new.fn.__module__


async def _awaited(answer: Awaitable[R]) -> R:
    return await answer


def _is_found_by_import(handler: Handler[..., Any]) -> bool:
    """
    Return whether another process gets this handler by importing its module, and nothing else happens there.
    """
    fn: Any = handler.fn
    # What was put around a function, by a framework maybe, need not be there in another process.
    is_wrapped = handler.entry is not fn or hasattr(fn, "__wrapped__")
    if fn.__module__ == "__main__" or is_wrapped or not _is_main_importable():
        return False
    return _named(fn) is handler


def _named(fn: Any) -> Any:
    """
    Return what has the name of a function in its module.
    """
    found: Any = sys.modules.get(getattr(fn, "__module__", ""))
    for part in getattr(fn, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found


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
    if inspect.isclass(fn):
        raise UsageError(
            f"handler of {topic}: {fn.__qualname__} is a class, and its instances are no result; decorate a "
            "function, or pass an instance that can be called"
        )
    if hasattr(fn, "dispatch") and hasattr(fn, "registry"):
        raise UsageError(
            f"handler of {topic}: a singledispatch function chooses by its first positional argument, but "
            "payloads hold arguments by name; decorate a function that calls it"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"handler of {topic}: a generator has no single answer; use a function that returns")
    if returns_awaitable(fn):
        if run_in in ("thread", "process"):
            raise UsageError(f"handler of {topic}: an async def runs on the event loop, not in a {run_in}")
        return "loop"
    # A plain wrapper of an async function may block, or run a loop of its own: it gets a thread unless told
    # otherwise, and what it returns is awaited on the loop.
    if run_in == "loop" and not is_async(fn):
        raise UsageError(
            f"handler of {topic}: a plain def would block the event loop; use async def or a thread"
        )
    name = getattr(fn, "__qualname__", "<>")
    if run_in == "process" and ("<" in name or inspect.ismethod(fn)):
        raise UsageError(f"handler of {topic}: {_NOT_FOUND.format(fn if name == '<>' else name)}")
    return "thread" if run_in == "auto" else run_in


_NOT_FOUND = (
    'a new process cannot import {}, which run_in="process" needs; decorate a function at the top of a '
    "module, which keeps its name (functools.wraps), or use another run_in"
)
