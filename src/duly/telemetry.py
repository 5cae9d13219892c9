"""
Spans of OpenTelemetry: enqueue where a job is sent, claim and handle where it runs, joined by trace headers.

Imported only where the API of OpenTelemetry has been.  A span names a job and says how it went; it never
holds a payload, a context, or the message of an exception, which may quote either.
"""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import duly
from duly.outcome import Planned, Snooze

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from duly.context import CurrentJob
    from duly.handle import JobHandle
    from duly.newjob import NewJob

_headers = TraceContextTextMapPropagator()

#: The verbs of duly, and what the conventions for messaging call their kind.
_TYPES = {"enqueue": "send", "claim": "receive", "handle": "process"}


def found() -> Telemetry | None:
    """
    Telemetry for the tracer provider of this process, None if none was set up.
    """
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Telemetry(provider)


class Telemetry:
    """
    Makes the spans of an app.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = trace.get_tracer("duly", duly.__version__, tracer_provider=provider)

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
                handle = await call_next(_with_headers(job))
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
        sender = _headers.extract(_texts(job.context), Context())
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


def _about(verb: str, topic: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "duly",
        "messaging.destination.name": topic,
        "messaging.operation.name": verb,
        "messaging.operation.type": _TYPES[verb],
    }


def _with_headers(job: NewJob[Any]) -> NewJob[Any]:
    """
    The job with the headers of the current span in its context, instead of those that it inherited.
    """
    carrier: dict[str, str] = {}
    _headers.inject(carrier)
    if not carrier or not (job.context is None or isinstance(job.context, dict)):
        return job
    kept = {name: value for name, value in (job.context or {}).items() if name not in _headers.fields}
    return job.options(context=kept | carrier)


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
