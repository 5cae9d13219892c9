"""
Middleware: async functions of an app around every enqueue and around every run of a handler.
"""

from __future__ import annotations

import sys
import time
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from duly.binding import is_async
from duly.context import CURRENT, fits
from duly.errors import UsageError
from duly.forks import importing
from duly.newjob import Limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.context import CurrentJob
    from duly.handle import JobHandle
    from duly.newjob import NewJob
    from duly.telemetry import Telemetry

LOOK_S = 1.0  #: how often to look whether spans are wanted

#: What middleware is given to call, and what middleware is.
Send: TypeAlias = "Callable[[NewJob[Any]], Awaitable[JobHandle[Any]]]"
AroundEnqueue: TypeAlias = "Callable[[NewJob[Any], Send], Awaitable[JobHandle[Any]]]"
Call: TypeAlias = "Callable[[], Awaitable[object]]"
AroundHandler: TypeAlias = "Callable[[CurrentJob, Call], Awaitable[object]]"

T = TypeVar("T", bound="Callable[..., Awaitable[Any]]")

#: W3C Trace Context and Baggage, https://www.w3.org/TR/trace-context/ and https://www.w3.org/TR/baggage/
TRACE_HEADERS = ("traceparent", "tracestate", "baggage")


class Middleware:
    """
    The middleware of one app, first added outermost, and what jobs inherit from the job that sends them.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.enqueue: list[AroundEnqueue] = []
        self.handler: list[AroundHandler] = []
        self.inherited = dict.fromkeys(TRACE_HEADERS)
        self.telemetry: Telemetry | None = None
        self._look_again_s = 0.0

    def around_enqueue(self) -> bool:
        """
        Whether there is anything around enqueue.
        """
        return bool(self.enqueue) or self.traced()

    def around_handler(self) -> bool:
        """
        Whether there is anything around handlers.
        """
        return bool(self.handler) or self.telemetry is not None

    def traced(self) -> bool:
        """
        Whether spans are made, as far as was known a second ago: looking takes too long for each job.
        """
        if self.telemetry is None and time.monotonic() >= self._look_again_s:
            self.look_for_telemetry()
        return self.telemetry is not None

    def look_for_telemetry(self) -> None:
        """
        Make spans from now on if an SDK of OpenTelemetry has been set up for the process.
        """
        self._look_again_s = time.monotonic() + LOOK_S
        # Who has set one up has imported it.
        if self.telemetry is None and "opentelemetry.trace" in sys.modules:
            with importing():
                from duly.telemetry import found  # noqa: PLC0415  # a package that need not be there

            self.telemetry = found(self.limits.context)

    def inherit(self, job: NewJob[Any]) -> NewJob[Any]:
        """
        Give a job that is sent from within a handler what the handler's own job passes on.
        """
        sender = CURRENT.get(None)
        if sender is None or not (job.context is None or isinstance(job.context, dict)):
            return job
        found = {name: sender.context[name] for name in self.inherited if name in sender.context}
        context = found | (job.context or {})
        if "baggage" in found and not fits(context, self.limits.context):
            # It is no reason to refuse a job.
            del found["baggage"]
            context = found | (job.context or {})
        return job.options(context=context) if context else job

    async def send(self, job: NewJob[Any], last: Send) -> JobHandle[Any]:
        """
        Send a job through all that is around enqueue.

        Raises:
            UsageError: One of them returned no handle.
            Whatever one of them refused it with.
        """
        if self.telemetry is not None:
            last = _layer(self.telemetry.enqueue, last)  # innermost, so that nobody drops its headers
        for around in reversed(self.enqueue):
            last = _layer(around, last)
        return await last(job)

    async def call(self, job: CurrentJob, last: Call) -> object:
        """
        Call a handler through all that is around it.
        """
        last = _once(last)
        for around in reversed(self.handler):
            last = _wrapped(around, job, last)
        if self.telemetry is not None:
            last = _wrapped(self.telemetry.handle, job, last)
        return await last()


def check_callable(fn: T, name: str) -> T:
    """
    Return *fn* if it can be called.

    Raises:
        UsageError: It cannot.
    """
    if not callable(fn):
        raise UsageError(f"{name} takes a function, not {fn!r}")
    return fn


def check_async(fn: T, name: str) -> T:
    """
    Return *fn* if it is an async function of a job and what comes next.

    Raises:
        UsageError: It is not.
    """
    if not is_async(fn):
        raise UsageError(f"{name} takes an async function, not {fn!r}: it awaits call_next")
    try:
        signature(fn).bind("job", "call_next")
    except TypeError as error:
        told = f"{name} calls fn(job, call_next), and {fn!r} cannot be called so: {error}"
        raise UsageError(told) from None
    except ValueError:
        pass  # it has no signature that Python knows
    return fn


def _layer(around: AroundEnqueue, inner: Send) -> Send:
    async def send(job: NewJob[Any]) -> JobHandle[Any]:
        handle = await around(job, inner)
        if handle is None:
            name = getattr(around, "__qualname__", repr(around))
            raise UsageError(f"middleware {name} returned None: return what call_next returned, or raise")
        return handle

    return send


def _wrapped(around: AroundHandler, job: CurrentJob, inner: Call) -> Call:
    return lambda: around(job, inner)


def _once(call: Call) -> Call:
    called = False

    def once() -> Awaitable[object]:
        nonlocal called
        if called:
            raise UsageError("call_next() was called twice: a handler runs once in an attempt; raise Retry()")
        called = True
        return call()

    return once
