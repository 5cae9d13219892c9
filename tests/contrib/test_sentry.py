"""
Sentry: the real SDK inside a real worker, with a transport that writes events to a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from duly import Duly, sentry
from duly.sentry import batch_context
from tests.sync.conftest import working

sentry_sdk = pytest.importorskip("sentry_sdk")

SHOP = """
    import asyncio
    import json
    import time

    import sentry_sdk
    from sentry_sdk.transport import Transport

    from duly import Duly, Fixed


    class Kept(Transport):
        def capture_envelope(self, envelope):
            if (event := envelope.get_event()) is not None:
                with open("events", "a") as file:
                    file.write(json.dumps(event, default=str) + "\\n")


    sentry_sdk.init(dsn="http://key@127.0.0.1:1/1", transport=Kept)
    app = Duly()


    def charge(card):
        raise ConnectionError(f"no answer for {card}")


    @app.handler("loop", max_attempts=2, backoff=Fixed(0.01))
    async def on_loop(card: int) -> None:
        charge(card)


    @app.handler("thread", max_attempts=2, backoff=Fixed(0.01))
    def in_thread(card: int) -> None:
        charge(card)


    @app.handler("process", max_attempts=1, run_in="process")
    def in_process(card: int) -> None:
        charge(card)


    @app.handler("fine")
    async def fine() -> None: ...


    @app.on_success
    def hook(job, result):
        raise LookupError("nobody to tell")


    # The scope of the process: every run inherits what it has now, and none may change it.
    sentry_sdk.set_tag("part", "shop")
    sentry_sdk.add_breadcrumb(message="imported")


    def remember(card):
        sentry_sdk.set_tag(f"card-{card}", card)
        sentry_sdk.set_user({"id": card})
        sentry_sdk.add_breadcrumb(message=f"card {card}")


    @app.handler("tag.loop", max_attempts=1)
    async def tag_on_loop(card: int) -> None:
        remember(card)
        await asyncio.sleep(0.05)  # the others set theirs meanwhile
        charge(card)


    @app.handler("tag.thread", max_attempts=1)
    def tag_in_thread(card: int) -> None:
        remember(card)
        time.sleep(0.05)
        charge(card)


    @app.handler("tag.process", max_attempts=1, run_in="process", concurrency=1)
    def tag_in_process(card: int) -> None:
        remember(card)
        sentry_sdk.capture_message(f"process {card}")
        charge(card)


    @app.handler("tag.stubborn", max_attempts=1, ttr=0.1)
    def does_not_stop(card: int) -> None:
        remember(card)
        time.sleep(4)
"""


@pytest.fixture
def run(tmp_path, valkey, namespace):
    """
    Run jobs to their end with ``duly work --burst``; return the events that Sentry got, and the log.
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "SENTRY_"))}

    def run(*options: str, **jobs: object) -> tuple[list[dict], str]:
        with Duly(valkey.url, namespace=namespace).sync as sender:
            for name, payload in jobs.items():
                for id_, each in payload.items() if name.startswith("tag_") else [("a", payload)]:
                    sender.enqueue(name.replace("_", "."), each, id=id_)
        done = subprocess.run(
            [sys.executable, "-m", "duly", "work", "shop:app", "--burst", *options],
            cwd=tmp_path,
            env=clean | {"DULY_URL": valkey.url, "DULY_NAMESPACE": namespace},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert 0 == done.returncode, done.stderr
        events = tmp_path / "events"
        return [json.loads(line) for line in events.read_text().splitlines()], done.stderr

    return run


def test_a_dead_job_is_one_event_with_its_exception_and_stack(run):
    events, log = run(loop={"card": 7}, thread={"card": 7})
    assert {("duly.runs", "error", "loop"), ("duly.runs", "error", "thread")} == {
        (event["logger"], event["level"], event["extra"]["topic"]) for event in events
    }
    for event in events:
        [exception] = event["exception"]["values"]
        assert ("ConnectionError", "no answer for 7") == (exception["type"], exception["value"])
        assert event["extra"]["topic"] == event["transaction"]
        frames = [frame["function"] for frame in exception["stacktrace"]["frames"]]
        assert "charge" == frames[-1]
        assert {"on_loop", "in_thread"} & set(frames)
        assert ("a", 2) == (event["extra"]["id"], event["extra"]["attempt"])
        assert "_brief" not in event["extra"]
    assert 2 == log.count(": dead: ConnectionError at shop.py:")
    assert "Traceback" not in log


def test_what_was_raised_in_a_process_is_told_with_its_traceback_as_text(run):
    [event], log = run(process={"card": 7})
    values = [exception["value"] for exception in event["exception"]["values"]]
    assert any("in charge" in value and "ConnectionError: no answer for 7" in value for value in values)
    assert "Traceback" not in log


def test_a_hook_that_fails_is_an_event_with_its_exception(run):
    [event], log = run("--tracebacks", fine=None)
    [exception] = event["exception"]["values"]
    assert ("duly.hooks", "LookupError") == (event["logger"], exception["type"])
    assert "hook on_success failed: LookupError at shop.py:" in log


def test_what_a_job_tells_sentry_stays_with_that_job(run):
    jobs = {f"id-{card}": {"card": card} for card in range(5)}
    one = {"id-9": {"card": 9}}
    events, _ = run(tag_loop=jobs, tag_thread=jobs, tag_process=jobs, tag_stubborn=one)
    told = [(event["transaction"], event.get("logger"), event["contexts"]["job"]["id"]) for event in events]
    both = [("tag.loop", "duly.runs"), ("tag.thread", "duly.runs"), ("tag.process", "duly.runs")]
    expected = [(topic, logger, id_) for topic, logger in [*both, ("tag.process", None)] for id_ in jobs]
    assert sorted([*expected, ("tag.stubborn", "duly.runs", "id-9")], key=str) == sorted(told, key=str)
    for event in events:
        card = int(event["contexts"]["job"]["id"].removeprefix("id-"))
        # What is set in a process is not known to the worker, whose event of the failure this is.
        is_own = event["transaction"] != "tag.process" or "logger" not in event
        assert {"part": "shop"} | ({f"card-{card}": card} if is_own else {}) == event["tags"]
        assert ({"id": card} if is_own else None) == event.get("user")
        crumbs = [crumb["message"] for crumb in event.get("breadcrumbs", {}).get("values", [])]
        assert [f"card {card}"] * is_own == [text for text in crumbs if text.startswith(("card", "imp"))]


def test_a_batch_has_a_scope_of_its_own(monkeypatch):
    monkeypatch.setattr(sentry_sdk, "is_initialized", lambda: True)
    first, second = batch_context("score", 3), batch_context("score", 7)
    first.run(sentry_sdk.set_tag, "batch", "first")
    scopes = [context.run(sentry_sdk.get_isolation_scope) for context in (first, second)]
    assert [{"batch": "first"}, {}] == [scope._tags for scope in scopes]
    told = [{"topic": "score", "jobs": jobs} for jobs in (3, 7)]
    assert told == [scope._contexts["batch"] for scope in scopes]
    assert ["score"] * 2 == [scope._transaction for scope in scopes]


@pytest.mark.parametrize("lacks", ["is_initialized", "isolation_scope"])
def test_with_sentry_sdk_1_jobs_run_without_a_scope_and_one_line_says_so(
    monkeypatch, caplog, valkey, namespace, lacks
):
    sentry._warn_of_old_sdk.cache_clear()
    monkeypatch.setattr(sentry_sdk, "VERSION", "1.45.1")
    monkeypatch.delattr(sentry_sdk, lacks)
    app = Duly(valkey.url, namespace=namespace, drain_grace=0.2)

    @app.handler("add")
    async def add(left: int, right: int) -> int:
        return left + right

    with working(app):
        assert [3, 7] == [app.sync.enqueue(add.job(*pair)).result(timeout=60) for pair in ((1, 2), (3, 4))]
    app.sync.close()
    [line] = [record.getMessage() for record in caplog.records if "sentry" in record.getMessage()]
    assert line.startswith("sentry-sdk 1.45.1 has no isolation scopes")
