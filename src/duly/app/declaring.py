"""
What an app runs, and what it tells of it: handlers, hooks and middleware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from duly.batchhandler import BatchHandler
from duly.codec import decode
from duly.defaults import MAX_CRASHES
from duly.errors import UsageError
from duly.extras import needed
from duly.forks import importing
from duly.handlers import Handlers
from duly.hooks import Hooks
from duly.job import check_topic
from duly.middleware import Middleware, check_async, check_callable
from duly.mistakes import needs_topic
from duly.redefinition import put

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import TracerProvider

    from duly.backoff import Backoff
    from duly.batchhandler import BatchFunction
    from duly.codec import Codec
    from duly.durations import Seconds
    from duly.handlers import Decorator, RunIn
    from duly.middleware import AroundEnqueue, AroundHandler
    from duly.newjob import ResultReader
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
        self.handlers = Handlers(settings.limits, defaults=settings.defaults)
        self.hooks = Hooks()
        self.middleware = Middleware(settings.limits)

    @property
    def codec(self) -> Codec:
        """
        How values become JSON and come back; types of the application's own are registered with it.
        """
        return self.handlers.codec

    # -- handlers -----------------------------------------------------------------------------------------

    @needs_topic
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
        Make the decorated function the handler of *topic*.

        What is not said is that of the settings of the same name.
        """
        return self.handlers.handler(
            topic,
            max_attempts=max_attempts,
            backoff=backoff,
            ttr=ttr,
            concurrency=concurrency,
            run_in=run_in,
            max_crashes=max_crashes,
        )

    @needs_topic
    def batch_handler(
        self,
        topic: str,
        *,
        max_rows: int = 10_000,
        every: Seconds = 0,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        ttr: Seconds | None = None,
    ) -> Callable[[BatchFunction], BatchHandler]:
        """
        Make the decorated function, DataFrame to DataFrame, the handler of batches of *topic*.

        Only `duly pipeline work` runs it, on Spark; workers of single jobs leave the topic alone.
        """

        def decorate(fn: BatchFunction) -> BatchHandler:
            handler = BatchHandler(
                fn,
                topic,
                max_rows=max_rows,
                every=every,
                max_attempts=max_attempts,
                backoff=backoff,
                ttr=ttr,
                defaults=self.settings.defaults,
                limits=self.settings.limits,
                codec=self.codec,
            )
            self.handlers.add_batch(handler)
            return handler

        return decorate

    def remove_handler(self, topic: str) -> None:
        """
        Stop taking jobs of *topic*; those that run go on.
        """
        self.handlers.remove(check_topic(topic))

    def read_result(self, topic: str, data: bytes, reader: ResultReader | None = None) -> Any:
        """
        Read a result as *reader* does, or else as what the handler of *topic* says it returns.

        Raises:
            Unreadable: It is something else.
        """
        if reader is None:
            handler = self.handlers.get(topic)
            reader = None if handler is None else handler.reader
        data = data or b"null"  # nothing is written of None, which a handler need not say it returns
        return decode(data) if reader is None else reader.read(data)

    # -- hooks --------------------------------------------------------------------------------------------

    def on_start(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job before its handler starts.
        """
        put(check_callable(hook, "on_start"), self.hooks.start)
        return hook

    def on_success(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job and what its handler returned, once that is stored.
        """
        put(check_callable(hook, "on_success"), self.hooks.success)
        return hook

    def on_failure(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job and what its handler raised, once that is stored.
        """
        put(check_callable(hook, "on_failure"), self.hooks.failure)
        return hook

    def on_timeout(self, hook: Hook) -> Hook:
        """
        Call *hook* with a job that was stopped because it ran too long.
        """
        put(check_callable(hook, "on_timeout"), self.hooks.timeout)
        return hook

    def on_lease_lost(self, hook: Hook) -> Hook:
        """
        Call *hook* with a job whose outcome here does not count any more.
        """
        put(check_callable(hook, "on_lease_lost"), self.hooks.lease_lost)
        return hook

    # -- middleware ---------------------------------------------------------------------------------------

    def around_enqueue(self, fn: AroundEnqueueT) -> AroundEnqueueT:
        """
        Send every job through ``async fn(job, call_next)``, which returns ``await call_next(job)`` or raises.

        Raises:
            UsageError: It is no async function.
        """
        put(check_async(fn, "around_enqueue"), self.middleware.enqueue)
        return fn

    def around_handler(self, fn: AroundHandlerT) -> AroundHandlerT:
        """
        Run every handler through ``async fn(job, call_next)``; what it returns or raises is the answer.

        Raises:
            UsageError: It is no async function.
        """
        put(check_async(fn, "around_handler"), self.middleware.handler)
        return fn

    def inherit(self, *names: str) -> None:
        """
        Pass these entries of a job's context on to the jobs that its handler sends, beside the trace headers.

        Raises:
            UsageError: A name is no text.
        """
        for name in names:
            if not isinstance(name, str):
                raise UsageError(f'inherit takes names, not {name!r}: write app.inherit("tenant", "locale")')
        self.middleware.inherited.update(dict.fromkeys(names))

    def trace_with(self, provider: TracerProvider, *, propagator: TextMapPropagator | None = None) -> None:
        """
        Make spans with this OpenTelemetry tracer provider, rather than with the one set up for the process.

        A *propagator* writes and reads the headers in jobs, rather than those configured for the process.
        A handler with ``run_in="process"`` is read with it where its module, or one that it imports, says so.
        """
        with needed("app.trace_with"), importing():
            from duly.telemetry import Telemetry  # noqa: PLC0415  # a package that need not be there

        self.handlers.propagator = propagator
        self.middleware.telemetry = Telemetry(provider, propagator, limit=self.settings.limits.context)
