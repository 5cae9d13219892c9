"""
Spans of OpenTelemetry, collected by the SDK's own exporter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.propagators.textmap import default_getter, default_setter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from duly import Bury, JobFailed, Snooze, current_job
from tests.eventually import eventually
from tests.services import traced, traced_b3
from tests.services.conftest import becomes, working

SECRET = "s3cr3t"


@pytest.fixture
def spans(app):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app.trace_with(provider)
    app.provider = provider
    yield lambda: {span.name: span for span in exporter.get_finished_spans()}
    provider.shutdown()


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_enqueue_claim_and_handle_are_one_trace(app, spans, place):
    def body(name: str) -> str:
        return trace.get_current_span().get_span_context().trace_id.to_bytes(16, "big").hex()

    async def async_body(name: str) -> str:
        return body(name)

    greet = app.handler("greet")(body if place == "thread" else async_body)
    async with working(app):
        job = await app.enqueue(greet.job(SECRET), id="g-1", context={"tenant": SECRET})
        inside = await job.result(timeout=30)
        await eventually(lambda: len(spans()) == 3, 30)
    enqueue, claim, handle = (spans()[f"{verb} greet"] for verb in ("enqueue", "claim", "handle"))
    assert [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER] == [
        span.kind for span in (enqueue, claim, handle)
    ]
    assert enqueue.parent is None
    for span in (claim, handle):
        assert enqueue.context.span_id == span.parent.span_id
        assert [enqueue.context.span_id] == [link.context.span_id for link in span.links]
        assert span.start_time <= span.end_time
    [trace_id] = {span.context.trace_id for span in (enqueue, claim, handle)}
    assert inside == f"{trace_id:032x}", "the handler runs within its span"
    assert {
        "messaging.system": "duly",
        "messaging.destination.name": "greet",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.message.id": "g-1",
        "messaging.message.body.size": len(greet.job(SECRET).payload),
        "duly.created": True,
    } == dict(enqueue.attributes)
    for span, kind in ((claim, "receive"), (handle, "process")):
        assert (kind, "g-1", 1) == tuple(
            span.attributes[name]
            for name in ("messaging.operation.type", "messaging.message.id", "duly.attempt")
        )
    assert StatusCode.UNSET == handle.status.status_code
    assert "tenant" in (await job.get()).envelope.context
    assert SECRET not in "".join(span.to_json() for span in spans().values())


async def test_a_job_sent_by_a_handler_continues_the_trace_below_it(app, spans):
    @app.handler("second")
    async def second() -> None: ...

    @app.handler("first")
    async def first() -> None:
        await (await app.enqueue(second.job(), id="2")).result(timeout=30)

    async with working(app):
        await (await app.enqueue(first.job(), id="1")).result(timeout=30)
        await eventually(lambda: len(spans()) == 6, 30)
    found = spans()
    assert 1 == len({span.context.trace_id for span in found.values()})
    assert found["handle first"].context.span_id == found["enqueue second"].parent.span_id
    assert found["enqueue second"].context.span_id == found["handle second"].parent.span_id


async def test_an_error_is_recorded_by_type_and_place_without_its_message(app, spans):
    @app.handler("fail", max_attempts=1)
    async def fail(card: str) -> None:
        raise ValueError(f"no such card: {card}")

    async with working(app):
        with pytest.raises(JobFailed):
            await (await app.enqueue(fail.job(SECRET))).result(timeout=30)
        await eventually(lambda: "handle fail" in spans(), 30)
    span = spans()["handle fail"]
    assert (StatusCode.ERROR, "ValueError") == (span.status.status_code, span.status.description)
    assert "ValueError" == span.attributes["error.type"]
    [event] = span.events
    assert "ValueError" == event.attributes["exception.type"]
    assert "test_telemetry.py" in event.attributes["exception.stacktrace"]
    assert SECRET not in span.to_json()


async def test_a_refused_enqueue_is_recorded(app, spans):
    with pytest.raises(ValueError, match="delay"):
        await app.enqueue("greet", delay=-1)
    assert "duly.errors.UsageError" == spans()["enqueue greet"].attributes["error.type"]


async def test_planned_endings_are_told_from_failures(app, spans):
    @app.handler("plan")
    async def plan() -> object:
        return Snooze(0.01) if current_job().id == "s" and not spans() else Bury("enough")

    async with working(app):
        await becomes(await app.enqueue(plan.job(), id="b"), "dead")
        await eventually(lambda: "handle plan" in spans(), 30)
    span = spans()["handle plan"]
    assert ("bury", "bury") == (span.attributes["duly.ending"], span.attributes["error.type"])


@pytest.mark.parametrize("place", ["loop", "thread", "process"])
async def test_baggage_travels_with_a_job_wherever_it_runs(app, spans, place):
    def body() -> str:
        return str(baggage.get_baggage("tenant"))

    async def async_body() -> str:
        return body()

    if place == "process":
        app.handlers.add(read_tenant := traced.read_tenant)
    else:
        read_tenant = app.handler("read.tenant")(body if place == "thread" else async_body)
    async with working(app):
        token = otel_context.attach(baggage.set_baggage("tenant", "acme"))
        try:
            first = await app.enqueue(read_tenant.job())
        finally:
            otel_context.detach(token)
        second = await app.enqueue(read_tenant.job())
        assert ["acme", "None"] == [await job.result(timeout=60) for job in (first, second)]
    assert "tenant=acme" == (await first.get()).envelope.context["baggage"]


@pytest.mark.parametrize("own", [2, "two bags", "tenant=other"])
async def test_an_entry_of_the_users_own_stays_where_there_is_no_baggage(app, spans, own):
    @app.handler("read")
    async def read() -> dict[str, Any]:
        return current_job().context

    async with working(app):
        sent = await app.enqueue(read.job(), context={"baggage": own, "passenger": "Ada"})
        context = await sent.result(timeout=30)
    assert {"baggage": own, "passenger": "Ada"} == {name: context[name] for name in ("baggage", "passenger")}


async def test_baggage_that_a_run_removed_is_not_inherited(app, spans):
    @app.handler("second")
    async def second() -> object:
        return current_job().context.get("baggage")

    @app.handler("first")
    async def first() -> object:
        otel_context.attach(baggage.clear())
        return await (await app.enqueue(second.job())).result(timeout=30)

    async with working(app):
        sent = await app.enqueue(first.job(), context={"baggage": "tenant=acme"})
        assert None is await sent.result(timeout=30)


async def test_a_process_continues_the_trace_of_its_job(app, spans):
    app.handlers.add(traced.trace_of)
    async with working(app):
        job = await app.enqueue(traced.trace_of.job())
        trace_id, parent_id = await job.result(timeout=60)
        await eventually(lambda: len(spans()) == 3, 30)
    span = spans()["handle trace.of"].context
    assert (f"{span.trace_id:032x}", f"{span.span_id:016x}") == (trace_id, parent_id)


async def test_baggage_is_passed_on_by_a_handler_where_nothing_is_traced(app):
    @app.handler("second")
    async def second() -> object:
        return current_job().context.get("baggage")

    @app.handler("first")
    async def first(size: int) -> object:
        job = await app.enqueue(second.job(), context={"text": "x" * size})
        return await job.result(timeout=30)

    async with working(app):
        for size, kept in ((10, "tenant=acme"), (8_175, None)):
            sent = await app.enqueue(first.job(size), context={"baggage": "tenant=acme"})
            assert kept == await sent.result(timeout=30)


async def test_baggage_without_room_for_it_is_left_out_and_the_job_is_sent(app, spans, caplog):
    @app.handler("greet")
    async def greet() -> str:
        return str(baggage.get_baggage("large"))

    token = otel_context.attach(baggage.set_baggage("large", "x" * 4_000))
    try:
        async with working(app):
            contexts = [{"text": "y" * size} for size in (10, 6_000, 6_000)]
            jobs = [await app.enqueue(greet.job(), context=context) for context in contexts]
            assert ["x" * 4_000, "None", "None"] == [await job.result(timeout=30) for job in jobs]
    finally:
        otel_context.detach(token)
    assert ["baggage is left out"] == [record.getMessage()[:19] for record in caplog.records]
    assert 1 == len({(await job.get()).envelope.context["traceparent"][:3] for job in jobs})


class Upside(TraceContextTextMapPropagator):
    """
    A propagator with a header of its own, as B3 and Jaeger have theirs.
    """

    fields = {"x-upside"}  # noqa: RUF012  # as the base has it

    def inject(self, carrier, context=None, setter=default_setter):
        inner = {}
        super().inject(inner, context)
        setter.set(carrier, "x-upside", inner.get("traceparent", "")[::-1])

    def extract(self, carrier, context=None, getter=default_getter):
        [found] = getter.get(carrier, "x-upside") or [""]
        return super().extract({"traceparent": found[::-1]}, context)


@pytest.mark.parametrize("place", ["process", "app"])
async def test_the_configured_propagator_writes_and_reads_the_headers(app, spans, place):
    @app.handler("greet")
    async def greet() -> None: ...

    before = propagate.get_global_textmap()
    if place == "process":
        propagate.set_global_textmap(Upside())
    else:
        app.trace_with(app.provider, propagator=Upside())
    try:
        async with working(app):
            job = await app.enqueue(greet.job(), context={"tenant": "acme"})
            await job.result(timeout=30)
            await eventually(lambda: len(spans()) == 3, 30)
    finally:
        propagate.set_global_textmap(before)
    assert {"tenant", "x-upside"} == set((await job.get()).envelope.context)
    assert 1 == len({span.context.trace_id for span in spans().values()})


async def test_a_process_reads_headers_with_the_propagator_of_its_app(app, spans):
    app.handlers.add(traced_b3.trace_of)
    app.trace_with(app.provider, propagator=traced_b3.B3())
    async with working(app):
        job = await app.enqueue(traced_b3.trace_of.job())
        trace_id, parent_id = await job.result(timeout=60)
        await eventually(lambda: len(spans()) == 3, 30)
    assert {"b3"} == set((await job.get()).envelope.context)
    span = spans()["handle trace.of"].context
    assert (f"{span.trace_id:032x}", f"{span.span_id:016x}") == (trace_id, parent_id)


async def test_headers_of_another_kind_are_passed_over(app, spans):
    @app.handler("greet")
    async def greet() -> None: ...

    async with working(app):
        for number, wrong in enumerate(("no header", 7, ["a"], None)):
            app.middleware.telemetry, mine = None, app.middleware.telemetry
            job = await app.enqueue(greet.job(), id=f"w{number}", context={"traceparent": wrong})
            app.middleware.telemetry = mine
            await job.result(timeout=30)
    assert spans()["handle greet"].parent is None


SCRIPT = """
import asyncio, sys
from duly import Duly

app = Duly(sys.argv[1], namespace=sys.argv[2])


@app.handler("greet")
async def greet() -> None: ...


async def main():
    async with app:
        stop = asyncio.Event()
        work = asyncio.create_task(app.work(stop=stop))
        await (await app.enqueue(greet.job())).result(timeout=30)
        stop.set()
        await work
"""


def run(valkey, namespace, code: str, *, before: str = "", **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + SCRIPT + code, valkey.url, namespace],
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_without_opentelemetry_nothing_of_it_is_imported(valkey, namespace):
    printed = run(
        valkey,
        namespace,
        "asyncio.run(main())\nprint('duly.telemetry' in sys.modules)\n",
        # Importing it fails, as if it were not installed.
        before="import sys\nsys.modules['opentelemetry'] = None\n",
    )
    assert "False\n" == printed


def test_where_only_the_api_is_there_no_spans_are_made(valkey, namespace):
    printed = run(
        valkey,
        namespace,
        "import opentelemetry.trace\nasyncio.run(main())\nprint(app.middleware.telemetry)\n",
    )
    assert "None\n" == printed


def test_a_sdk_set_up_for_the_process_is_found(valkey, namespace):
    printed = run(
        valkey,
        namespace,
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
asyncio.run(main())
print(sorted(span.name for span in exporter.get_finished_spans()))
""",
    )
    assert "['claim greet', 'enqueue greet', 'handle greet']\n" == printed


PROPAGATED = """
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from duly import current_job

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
context.attach(baggage.set_baggage("tenant", "acme"))
seen = []


@app.around_handler
async def see(job, call_next):
    seen.append((sorted(job.context), baggage.get_baggage("tenant")))
    return await call_next()


asyncio.run(main())
traces = {span.context.trace_id for span in exporter.get_finished_spans()}
print(*seen, len(traces))
"""


@pytest.mark.parametrize(
    ("propagators", "headers", "tenant", "traces"),
    [
        (None, ["baggage", "traceparent"], "acme", 1),
        ("tracecontext,baggage", ["baggage", "traceparent"], "acme", 1),
        ("tracecontext", ["traceparent"], None, 1),
        ("baggage", ["baggage"], "acme", 3),
        ("none", [], None, 3),
    ],
)
def test_headers_follow_the_variable_otel_propagators(
    valkey, namespace, propagators, headers, tenant, traces
):
    env = {} if propagators is None else {"OTEL_PROPAGATORS": propagators}
    printed = run(valkey, namespace, PROPAGATED, **env)
    # Where the trace is not told, enqueue, claim and handle have one each.
    assert f"{(headers, tenant)} {traces}\n" == printed
