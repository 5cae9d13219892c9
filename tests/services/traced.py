"""
Handlers that run in child processes and look at what OpenTelemetry knows there.
"""

from __future__ import annotations

from opentelemetry import baggage, trace

from duly import Duly

app = Duly("redis://nobody.invalid")


@app.handler("read.tenant", run_in="process")
def read_tenant() -> str:
    return str(baggage.get_baggage("tenant"))


@app.handler("trace.of", run_in="process")
def trace_of() -> list[str]:
    span = trace.get_current_span().get_span_context()
    return [f"{span.trace_id:032x}", f"{span.span_id:016x}"]
