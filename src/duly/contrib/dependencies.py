"""
FastAPI's `Depends` in handlers: dependencies are resolved for a job, and closed after its run.

A job has no request.  What a dependency would take from one is refused when the handler is decorated.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import anyio.to_thread
from fastapi import BackgroundTasks, Request, Response, WebSocket
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Depends, Security
from fastapi.security import SecurityScopes
from pydantic.fields import FieldInfo
from starlette.requests import HTTPConnection

from duly.binding import function_of
from duly.errors import UsageError
from duly.handlers import WITHHELD, Handler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager

    from fastapi import FastAPI

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Kind = Literal["plain", "async", "generator", "async generator"]

_OF_A_REQUEST = (Request, Response, WebSocket, HTTPConnection, BackgroundTasks, SecurityScopes)


class Injected(Protocol[R_co]):
    """
    A function whose arguments are checked when it is called, and by no type checker.
    """

    # Not `...`: for mypy that fits async and plain functions alike, and a handler of it would be Any.
    def __call__(self, *args: object, **kwargs: object) -> R_co: ...  # noqa: D102


@overload
def inject(fn: Callable[..., R], /) -> Injected[R]: ...


@overload
def inject(*, api: FastAPI) -> Callable[[Callable[..., R]], Injected[R]]: ...


def inject(fn: Callable[..., Any] | None = None, /, *, api: FastAPI | None = None) -> Any:
    """
    Resolve what a handler declares with `Depends`, below ``@app.handler``; all else is the payload of a job.

    With an *api*, its ``dependency_overrides`` take the place of the dependencies that they name.

    Raises:
        UsageError: There is no dependency, one needs a request, or an async one is declared by a plain def.
    """
    if fn is None:
        return lambda fn: _inject(fn, api)
    return _inject(fn, api)


def _inject(fn: Callable[..., Any], api: FastAPI | None) -> Callable[..., Any]:
    if isinstance(fn, Handler):
        raise UsageError(f"handler of {fn.topic}: write @inject below @app.handler, nearest to the function")
    signature, hints = inspect.signature(fn), _hints_of(fn)
    needs = {
        name: found
        for name, parameter in signature.parameters.items()
        if (found := _depends_of(parameter, hints.get(name), fn)) is not None
    }
    if not needs:
        raise UsageError(f"{_name(fn)} declares no dependency: leave out @inject, or say Depends(…)")
    is_async = inspect.iscoroutinefunction(inspect.unwrap(fn))  # below decorators of its own, too
    for need in needs.values():
        _plan(need.dependency, fn, is_async=is_async)
    resolver = functools.partial(_Resolver, fn, needs, api)

    if is_async:

        async def injected_async(*args: Any, **kwargs: Any) -> Any:
            failure: BaseException
            async with AsyncExitStack() as stack:
                kwargs |= await resolver(args, kwargs).resolve_async(stack)
                try:
                    answer = fn(*args, **kwargs)
                    return await answer if inspect.isawaitable(answer) else answer
                except BaseException as error:
                    failure = error
                    raise
            # A dependency has caught it: what failed did not succeed all the same.
            raise failure

        wrapper: Callable[..., Any] = injected_async
    else:

        def injected(*args: Any, **kwargs: Any) -> Any:
            failure: BaseException
            with ExitStack() as stack:
                kwargs |= resolver(args, kwargs).resolve(stack)
                try:
                    return _checked(fn(*args, **kwargs), fn)
                except BaseException as error:
                    failure = error
                    raise
            raise failure  # as above

        wrapper = injected
    functools.update_wrapper(wrapper, fn)
    # The binding of a handler follows __wrapped__, and would make dependencies a part of the payload.
    del wrapper.__wrapped__  # type: ignore[attr-defined]
    kept = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
        if name not in needs
    ]
    wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=kept, return_annotation=hints.get("return", signature.return_annotation)
    )
    wrapper.__annotations__ = {name: hint for name, hint in hints.items() if name not in needs}
    setattr(wrapper, WITHHELD, frozenset(needs))
    return wrapper


def _checked(answer: Any, fn: Callable[..., Any]) -> Any:
    """
    Refuse what would run after its dependencies are closed.
    """
    if not inspect.isawaitable(answer):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    raise UsageError(f"{_name(fn)} returned something to await: make it async def, or use functools.wraps")


@dataclass(frozen=True, slots=True)
class _Need:
    """
    A dependency as a parameter names it.
    """

    dependency: Callable[..., Any]
    use_cache: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """
    How to call a dependency.
    """

    kind: Kind
    needs: dict[str, _Need]


@dataclass(slots=True)
class _Resolver:
    """
    The dependencies of one run, each resolved once.
    """

    fn: Callable[..., Any]
    needs: dict[str, _Need]
    api: FastAPI | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: dict[Callable[..., Any], Any] = field(default_factory=dict)

    def _missing(self) -> dict[str, _Need]:
        # A direct call may give some of them, as tests do.
        given = inspect.signature(self.fn).bind_partial(*self.args, **self.kwargs).arguments
        return {name: need for name, need in self.needs.items() if name not in given}

    def _found(self, need: _Need) -> Callable[..., Any]:
        # Asked each time: tests set another dict of them.
        overrides = {} if self.api is None else self.api.dependency_overrides
        return overrides.get(need.dependency, need.dependency)

    def resolve(self, stack: ExitStack) -> dict[str, Any]:
        """
        Resolve them in this thread.
        """
        return {name: self._value(need, stack) for name, need in self._missing().items()}

    def _value(self, need: _Need, stack: ExitStack) -> Any:
        call = self._found(need)
        if need.use_cache and call in self.values:
            return self.values[call]
        plan = _plan(call, self.fn, is_async=False)
        kwargs = {name: self._value(inner, stack) for name, inner in plan.needs.items()}
        is_generator = plan.kind == "generator"
        value = stack.enter_context(contextmanager(call)(**kwargs)) if is_generator else call(**kwargs)
        return self.values.setdefault(call, value) if need.use_cache else value

    async def resolve_async(self, stack: AsyncExitStack) -> dict[str, Any]:
        """
        Resolve them on the event loop, plain ones in threads.
        """
        return {name: await self._async_value(need, stack) for name, need in self._missing().items()}

    async def _async_value(self, need: _Need, stack: AsyncExitStack) -> Any:
        call = self._found(need)
        if need.use_cache and call in self.values:
            return self.values[call]
        plan = _plan(call, self.fn, is_async=True)
        kwargs = {name: await self._async_value(inner, stack) for name, inner in plan.needs.items()}
        match plan.kind:
            case "async":
                value = await call(**kwargs)
            case "async generator":
                value = await stack.enter_async_context(asynccontextmanager(call)(**kwargs))
            case "generator":
                value = await stack.enter_async_context(_in_threads(contextmanager(call)(**kwargs)))
            case _:
                value = await run_in_threadpool(call, **kwargs)
        return self.values.setdefault(call, value) if need.use_cache else value


@asynccontextmanager
async def _in_threads(manager: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    """
    Enter and exit in threads, however the run ends: FastAPI's own does not exit after a cancellation.
    """
    value = await run_in_threadpool(manager.__enter__)
    # What waits for room in a pool must not keep others from making room there.
    leave = functools.partial(anyio.to_thread.run_sync, limiter=anyio.CapacityLimiter(1))
    try:
        yield value
    except BaseException as error:
        if not await leave(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await leave(manager.__exit__, None, None, None)


@functools.lru_cache(maxsize=1024)
def _plan(call: Callable[..., Any], fn: Callable[..., Any], *, is_async: bool) -> _Plan:
    """
    Work out how to call a dependency of the handler *fn*, and all that it needs.

    Raises:
        UsageError: It cannot be called for a job.
    """
    kind = _kind_of(call)
    if kind.startswith("async") and not is_async:
        raise UsageError(
            f"{_name(fn)} is a plain def, and its dependency {_name(call)} is async: "
            "make the handler async def"
        )
    hints = _hints_of(call)
    needs: dict[str, _Need] = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        need = _depends_of(parameter, hints.get(name), call)
        if need is not None:
            _plan(need.dependency, fn, is_async=is_async)
            needs[name] = need
        elif parameter.default is parameter.empty:
            raise UsageError(
                f"dependency {_name(call)} of {_name(fn)}: parameter {name} comes from a request, "
                "and a job has none: give it a default, or Depends(…)"
            )
    return _Plan(kind, needs)


def _depends_of(parameter: inspect.Parameter, hint: Any, of: Callable[..., Any]) -> _Need | None:
    """
    Read what a parameter declares; None if it is an ordinary one.

    Raises:
        UsageError: It is something of a request.
    """
    said = [*get_args(hint)[1:], parameter.default] if get_origin(hint) is Annotated else [parameter.default]
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(kind, type) and issubclass(kind, _OF_A_REQUEST):
        raise UsageError(f"{_name(of)}: parameter {parameter.name} is of a request, and a job has none")
    for each in said:
        if isinstance(each, Security) or (isinstance(each, FieldInfo) and type(each) is not FieldInfo):
            raise UsageError(
                f"{_name(of)}: parameter {parameter.name} is {type(each).__name__}(…), "
                "which comes from a request, and a job has none"
            )
        if isinstance(each, Depends):
            dependency = each.dependency or kind
            if not callable(dependency):
                raise UsageError(f"{_name(of)}: what parameter {parameter.name} depends on cannot be called")
            return _Need(dependency, each.use_cache)
    return None


def _kind_of(call: Callable[..., Any]) -> Kind:
    """
    Tell how to call a dependency, as FastAPI does: a plain wrapper is of the kind of what it wraps.
    """
    outer: Any = call if inspect.isclass(call) or inspect.isroutine(call) else call.__call__  # type: ignore[operator]
    forms = (outer, function_of(call))
    if any(map(inspect.isasyncgenfunction, forms)):
        return "async generator"
    if any(map(inspect.isgeneratorfunction, forms)):
        return "generator"
    return "async" if any(map(inspect.iscoroutinefunction, forms)) else "plain"


def _hints_of(call: Callable[..., Any]) -> dict[str, Any]:
    target: Any = call.func if isinstance(call, functools.partial) else call
    if inspect.isclass(target):
        target = target.__init__
    elif not inspect.isroutine(target):
        target = target.__call__
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as error:
        raise UsageError(
            f"{_name(call)}: its annotations cannot be read ({error}): "
            "import what they name, not only for type checkers"
        ) from None


def _name(call: Callable[..., Any]) -> str:
    return getattr(call, "__qualname__", None) or repr(call)
