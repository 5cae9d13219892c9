"""
What an app runs, and what it tells of it: handlers, hooks and middleware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from duly.batchhandler import BatchHandler
from duly.handlers import Handlers
from duly.hooks import Hooks
from duly.middleware import Middleware, check_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import TracerProvider

    from duly.backoff import Backoff, Seconds
    from duly.batchhandler import BatchFunction
    from duly.handlers import Decorator, RunIn
    from duly.middleware import AroundEnqueue, AroundHandler
    from duly.settings import Settings

Hook = TypeVar("Hook", bound="Callable[..., Any]")
AroundEnqueueT = TypeVar("AroundEnqueueT", bound="AroundEnqueue")
AroundHandlerT = TypeVar("AroundHandlerT", bound="AroundHandler")


class Declaring:
    """
    What can be said of an app before it does anything.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.handlers = Handlers(settings.limits)
        self.hooks = Hooks()
        self.middleware = Middleware()

    # -- handlers -----------------------------------------------------------------------------------------

    def handler(
        self,
        topic: str,
        *,
        max_attempts: int = 5,
        backoff: Backoff | None = None,
        ttr: Seconds = 300,
        concurrency: int | None = None,
        run_in: RunIn = "auto",
        max_crashes: int = 3,
    ) -> Decorator:
        """
        Make the decorated function the handler of *topic*.
        """
        more: dict[str, Any] = {} if backoff is None else {"backoff": backoff}
        return self.handlers.handler(
            topic,
            max_attempts=max_attempts,
            ttr=ttr,
            concurrency=concurrency,
            run_in=run_in,
            max_crashes=max_crashes,
            **more,
        )

    def batch_handler(
        self,
        topic: str,
        *,
        max_rows: int = 10_000,
        every: Seconds = 0,
        max_attempts: int = 5,
        backoff: Backoff | None = None,
        ttr: Seconds = 300,
    ) -> Callable[[BatchFunction], BatchHandler]:
        """
        Make the decorated function, DataFrame to DataFrame, the handler of batches of *topic*.

        Only `duly pipeline work` runs it, on Spark; workers of single jobs leave the topic alone.
        """
        more: dict[str, Any] = {} if backoff is None else {"backoff": backoff}

        def decorate(fn: BatchFunction) -> BatchHandler:
            handler = BatchHandler(
                fn,
                topic,
                max_rows=max_rows,
                every=every,
                max_attempts=max_attempts,
                ttr=ttr,
                limits=self.settings.limits,
                **more,
            )
            self.handlers.add_batch(handler)
            return handler

        return decorate

    def remove_handler(self, topic: str) -> None:
        """
        Stop taking jobs of *topic*; those that run go on.
        """
        self.handlers.remove(topic)

    def read_result(self, topic: str, value: Any) -> Any:
        """
        Turn a result into what its handler says it returns, where that is known here.
        """
        handler = self.handlers.get(topic)
        if handler is None:
            return value
        kind = handler.binding.returns()
        if kind is None:
            return value
        try:
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, TypeError):
            return value

    # -- hooks --------------------------------------------------------------------------------------------

    def on_start(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job before its handler starts.
        """
        self.hooks.start.append(hook)
        return hook

    def on_success(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job and what its handler returned, once that is stored.
        """
        self.hooks.success.append(hook)
        return hook

    def on_failure(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job and what its handler raised, once that is stored.
        """
        self.hooks.failure.append(hook)
        return hook

    def on_timeout(self, hook: Hook) -> Hook:
        """
        Call *hook* with a job that was stopped because it ran too long.
        """
        self.hooks.timeout.append(hook)
        return hook

    def on_lease_lost(self, hook: Hook) -> Hook:
        """
        Call *hook* with a job whose outcome here does not count any more.
        """
        self.hooks.lease_lost.append(hook)
        return hook

    # -- middleware ---------------------------------------------------------------------------------------

    def around_enqueue(self, fn: AroundEnqueueT) -> AroundEnqueueT:
        """
        Send every job through ``async fn(job, call_next)``, which returns ``await call_next(job)`` or raises.

        Raises:
            UsageError: It is no async function.
        """
        self.middleware.enqueue.append(check_async(fn, "around_enqueue"))
        return fn

    def around_handler(self, fn: AroundHandlerT) -> AroundHandlerT:
        """
        Run every handler through ``async fn(job, call_next)``; what it returns or raises is the answer.

        Raises:
            UsageError: It is no async function.
        """
        self.middleware.handler.append(check_async(fn, "around_handler"))
        return fn

    def inherit(self, *names: str) -> None:
        """
        Pass these entries of a job's context on to the jobs that its handler sends, beside the trace headers.
        """
        self.middleware.inherited.update(dict.fromkeys(names))

    def trace_with(self, provider: TracerProvider) -> None:
        """
        Make spans with this OpenTelemetry tracer provider, rather than with the one set up for the process.
        """
        from duly.telemetry import Telemetry  # noqa: PLC0415  # a package that need not be there

        self.middleware.telemetry = Telemetry(provider)
