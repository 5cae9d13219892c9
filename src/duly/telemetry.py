"""
Spans of OpenTelemetry: enqueue where a job is sent, claim and handle where it runs, joined by headers.

The configured propagators write and read the headers, which travel in the context of a job, baggage too.

Imported only where the API of OpenTelemetry has been.  A span names a job and says how it went; it never
holds a payload, a context, or the message of an exception, which may quote either.
"""

from __future__ import annotations

import logging
import time
import traceback
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

import duly
from duly.context import CURRENT, fits
from duly.outcome import Planned, Snooze

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from duly.context import CurrentJob
    from duly.handle import JobHandle
    from duly.newjob import NewJob

log = logging.getLogger("duly")

#: The verbs of duly, and what the conventions for messaging call their kind.
_TYPES = {"enqueue": "send", "claim": "receive", "handle": "process"}


def found(limit: int) -> Telemetry | None:
    """
    Telemetry for the tracer provider of this process, None if none was set up.
    """
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Telemetry(provider, limit=limit)


def continue_trace(context: dict[str, Any], propagator: TextMapPropagator | None = None) -> None:
    """
    Make the trace and the baggage that a job brings those of the current context, for good.

    Without a *propagator*, the one that is configured for the process reads the headers.
    """
    reader = propagator or propagate.get_global_textmap()
    otel_context.attach(reader.extract(_texts(context), Context()))


class Telemetry:
    """
    Makes the spans of an app.
    """

    def __init__(
        self,
        provider: TracerProvider,
        propagator: TextMapPropagator | None = None,
        *,
        limit: int,
    ) -> None:
        """
        Prepare: without a *propagator*, the one that is configured for the process writes and reads headers.

        *limit* is the size of a job's context in bytes.
        """
        self._tracer = trace.get_tracer("duly", duly.__version__, tracer_provider=provider)
        self._own_propagator = propagator
        self._limit = limit
        self._has_warned = False

    @property
    def _propagator(self) -> TextMapPropagator:
        return self._own_propagator or propagate.get_global_textmap()

    async def enqueue(
        self, job: NewJob[Any], call_next: Callable[[NewJob[Any]], Awaitable[JobHandle[Any]]]
    ) -> JobHandle[Any]:
        """
        Send a job within a span, with trace headers in its context.
        """
        about = _about("enqueue", job.topic) | {"messaging.message.body.size": len(job.payload)}
        with self._tracer.start_as_current_span(
            f"enqueue {job.topic}",
            kind=SpanKind.PRODUCER,
            attributes=about,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                handle = await call_next(self._with_headers(job))
            except BaseException as error:
                _failed(span, error)
                raise
            span.set_attribute("messaging.message.id", handle.id)
            span.set_attribute("duly.created", handle.created)
            return handle

    async def handle(self, job: CurrentJob, call_next: Callable[[], Awaitable[object]]) -> object:
        """
        Run a handler within a span, next to one for the claim, both below that of the sender.
        """
        sender = self._propagator.extract(_texts(job.context), Context())
        sent = trace.get_current_span(sender).get_span_context()
        links = [Link(sent)] if sent.is_valid else []
        about: dict[str, AttributeValue] = {"messaging.message.id": job.id, "duly.attempt": job.attempt}
        now_ns = time.time_ns()
        # By the server's clock, which may be ahead of ours.
        claim = self._tracer.start_span(
            f"claim {job.topic}",
            sender,
            kind=SpanKind.CONSUMER,
            attributes=_about("claim", job.topic) | about,
            links=links,
            start_time=min(job.claimed_ms * 1_000_000, now_ns),
        )
        claim.end(now_ns)
        token = otel_context.attach(sender)  # with its baggage
        try:
            return await self._handle(job, call_next, sender, links, about)
        finally:
            otel_context.detach(token)

    async def _handle(
        self,
        job: CurrentJob,
        call_next: Callable[[], Awaitable[object]],
        sender: Context,
        links: list[Link],
        about: dict[str, AttributeValue],
    ) -> object:
        with self._tracer.start_as_current_span(
            f"handle {job.topic}",
            sender,
            kind=SpanKind.CONSUMER,
            attributes=_about("handle", job.topic) | about,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                answer = await call_next()
            except BaseException as error:
                _failed(span, error)
                raise
            if isinstance(answer, Planned):
                _failed(span, answer)
            return answer

    def carried(self, context: dict[str, Any]) -> dict[str, Any]:
        """
        Return a context with the headers of the current span and its baggage, instead of those it had.

        An entry "baggage" stays where there is no baggage to write.  Baggage is left out where there is no
        room for it: it is no reason to refuse a job.
        """
        carrier: dict[str, str] = {}
        propagator = self._propagator
        propagator.inject(carrier)
        if not carrier:
            return context
        written = propagator.fields - ({"baggage"} - carrier.keys())
        kept = {name: value for name, value in context.items() if name not in written}
        if "baggage" in carrier and not fits(kept | carrier, self._limit):
            del carrier["baggage"]
            if not self._has_warned:
                self._has_warned = True
                log.warning("baggage is left out of jobs whose context it makes too large: set less of it")
        return kept | carrier

    def _with_headers(self, job: NewJob[Any]) -> NewJob[Any]:
        if not (job.context is None or isinstance(job.context, dict)):
            return job
        context = dict(job.context or {})
        sender, baggage = CURRENT.get(None), context.get("baggage")
        if sender is not None and isinstance(baggage, str) and baggage == sender.context.get("baggage"):
            # It is inherited, and the run may have changed or removed its baggage since.
            del context["baggage"]
        context = self.carried(context)
        return job.options(context=context) if context else job


def _about(verb: str, topic: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "duly",
        "messaging.destination.name": topic,
        "messaging.operation.name": verb,
        "messaging.operation.type": _TYPES[verb],
    }


def _texts(context: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in context.items() if isinstance(value, str)}


def _failed(span: Span, error: BaseException) -> None:
    """
    Record what went wrong by its type and its place.
    """
    if isinstance(error, Snooze):
        span.set_attribute("duly.ending", "snooze")
        return
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(error, Planned):
        name = kind.__name__.lower()
        span.set_attribute("duly.ending", name)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))
    where = "".join(traceback.format_tb(error.__traceback__))
    span.add_event("exception", {"exception.type": name, "exception.stacktrace": where})
