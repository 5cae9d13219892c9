"""
A handler that runs in child processes, of an app with a propagator of its own: B3 in a single header.
"""

from __future__ import annotations

import re
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator, default_getter, default_setter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from duly import Duly

_B3 = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})-([01])")


class B3(TextMapPropagator):
    """
    The header "b3", as Zipkin has it.
    """

    fields = {"b3"}  # noqa: RUF012  # as the base has it

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = default_setter) -> None:
        span = trace.get_current_span(context).get_span_context()
        if span.is_valid:
            sampled = int(span.trace_flags.sampled)
            setter.set(carrier, "b3", f"{span.trace_id:032x}-{span.span_id:016x}-{sampled}")

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = default_getter) -> Context:
        found = _B3.fullmatch((getter.get(carrier, "b3") or [""])[0])
        if found is None:
            return context or Context()
        flags = TraceFlags(int(found[3]))
        span = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(NonRecordingSpan(span), context)


app = Duly("redis://nobody.invalid")


@app.handler("trace.of", run_in="process")
def trace_of() -> list[str]:
    span = trace.get_current_span().get_span_context()
    return [f"{span.trace_id:032x}", f"{span.span_id:016x}"]


app.trace_with(trace.NoOpTracerProvider(), propagator=B3())
