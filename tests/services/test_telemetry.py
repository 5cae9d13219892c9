"""
Spans of OpenTelemetry, collected by the SDK's own exporter.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from duly import Bury, JobFailed, Snooze, current_job
from tests.eventually import eventually
from tests.services.conftest import becomes, working

SECRET = "s3cr3t"


@pytest.fixture
def spans(app):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app.trace_with(provider)
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


def run(valkey, namespace, code: str, *, before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + SCRIPT + code, valkey.url, namespace],
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
