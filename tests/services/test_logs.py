"""
Log lines about jobs: fields on each, and never what a job was given.
"""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from duly import Bury, Retry, Snooze, current_job
from duly.logs import TEXT, JsonFormatter
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, tally, working

SECRET = "s3cr3t-4711"
FIELDS = {"topic", "id", "attempt", "token", "worker", "shard"}


@pytest.fixture
def lines(caplog):
    """
    Whatever any logger says, at any level, as text and as JSON.
    """
    caplog.set_level(0)
    forms = (logging.Formatter(TEXT), JsonFormatter())

    def written() -> str:
        return "\n".join(form.format(record) for record in caplog.records for form in forms)

    return written


def about(caplog, id_: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "id", None) == id_]


async def test_lines_about_a_job_carry_its_fields(app, caplog):
    caplog.set_level(logging.INFO)

    @app.handler("t", max_attempts=2, ttr=0.2)
    async def handler() -> object:
        match current_job().id, current_job().attempt:
            case "retried", 1:
                return Retry(delay=0.01)
            case "buried", _:
                raise Bury("no more")
            case "slow", _:
                await asyncio.sleep(600)
        return None

    async with working(app):
        for id_, state in (("retried", "succeeded"), ("buried", "dead"), ("slow", "dead")):
            await becomes(
                await app.enqueue(handler.job(), id=id_, max_attempts=1 + (id_ == "retried")), state
            )

    for id_, start in (
        ("retried", "t/retried, attempt 1: failed, again in 0.01 s: retry"),
        ("buried", "t/buried, attempt 1: dead: buried"),
        ("slow", "t/slow ran longer than its time to run"),
        ("slow", "t/slow, attempt 1: dead: TimeoutError"),
    ):
        [record] = [each for each in about(caplog, id_) if each.getMessage().startswith(start)]
        assert vars(record).keys() >= FIELDS, start
        assert ("t", 1, 0) == (record.topic, record.attempt, record.shard)


async def test_a_released_and_a_lost_job_are_told_of(app, caplog):
    caplog.set_level(logging.INFO)
    began = asyncio.Event()

    @app.handler("long")
    async def long() -> None:
        began.set()
        await asyncio.sleep(600)

    async with working(app):
        lost = await app.enqueue(long.job(), id="lost")
        await began.wait()
        await lost.cancel()
        await eventually(lambda: len(about(caplog, "lost")) == 1, 30)
        began.clear()
        released = await app.enqueue(long.job(), id="released")
        await began.wait()
    assert ("ready", 0, 0) == await tally(released)
    assert ["lost the lease on long/lost; its outcome here does not count"] == [
        record.getMessage() for record in about(caplog, "lost")
    ]
    [record] = about(caplog, "released")
    assert "long/released: released" == record.getMessage()
    assert vars(record).keys() >= FIELDS


async def test_nothing_that_a_job_was_given_shows_in_any_line(app, lines, caplog):
    """
    With a secret in payload, context, progress, result and in whatever is raised.
    """

    def leak() -> object:
        match current_job().id:
            case "raises":
                raise ValueError(f"bad card {SECRET}")
            case "chains":
                try:
                    {}[SECRET]
                except KeyError as error:
                    raise RuntimeError(SECRET) from error
            case "buries":
                return Bury(SECRET)
            case "retries":
                raise Retry(0.01, SECRET)
            case "snoozes" if not current_job().cancelled and "snoozed" not in seen:
                seen.append("snoozed")
                return Snooze(0.01)
            case "no-json":
                return {SECRET: object()}
        return SECRET

    seen: list[str] = []

    @app.handler("loop", max_attempts=2, backoff=lambda _: 0.01)
    async def on_loop(card: str) -> object:
        await current_job().progress({"card": card})
        return leak()

    @app.handler("thread", max_attempts=2, backoff=lambda _: 0.01)
    def in_thread(card: str) -> object:
        current_job().progress({"card": card})
        return leak()

    @app.handler("typed")
    async def typed(amount: int) -> None: ...

    class Model:
        @classmethod
        def model_validate(cls, value: object) -> Model:
            raise ValueError(f"not a model: {value}")

    @app.handler("checked")
    async def checked(model: Model) -> None: ...

    app.handlers.add(processes.tell)

    @app.on_failure
    def hook(job, error):
        raise LookupError(f"{job.context} {error}")

    @app.on_success
    async def other_hook(job, result):
        raise LookupError(f"{job.context} {result}")

    @app.around_handler
    async def around(job, call_next):
        if job.id == "around":
            raise ValueError(f"{job.context}")
        return await call_next()

    context = {"key": SECRET}
    ids = ("plain", "raises", "chains", "buries", "retries", "snoozes", "no-json", "around")
    async with working(app):
        jobs = [
            await app.enqueue(topic, {"card": SECRET}, id=id_, context=context)
            for topic in ("loop", "thread")
            for id_ in ids
        ]
        jobs += [
            await app.enqueue("typed", {"amount": SECRET}, id="unbound", context=context),
            await app.enqueue("typed", {"unknown": SECRET}, id="unknown", context=context),
            await app.enqueue("typed", SECRET, id="not-an-object", context=context),
            await app.enqueue("checked", {"model": SECRET}, id="refused", context=context),
            await app.enqueue("tell", {"card": SECRET}, id="child", context=context, max_attempts=1),
        ]
        for job in jobs:

            async def ended(job=job) -> None:
                assert (await job.get()).state.ended, job

            await eventually(ended, 60)
    # It was there, and is kept where it belongs.
    assert SECRET in (await app.job("loop", "raises").get()).outcome.decode()
    text = lines()
    for told in (
        "loop/raises, attempt 2: dead: ",
        "typed/unbound, attempt 1: dead: ",
        "hook on_failure failed",
        "tell/child, ",
    ):
        assert told in text
    assert SECRET not in text


async def test_lines_written_below_a_handler_say_which_job_it_was(app, caplog):
    log = logging.getLogger("shop")
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(JsonFormatter().format(record))

    keep = Keep()
    log.addHandler(keep)
    caplog.set_level(logging.INFO)

    @app.handler("loop")
    async def on_loop() -> None:
        log.info("inside")

    @app.handler("thread")
    def in_thread() -> None:
        log.info("inside")

    try:
        async with working(app):
            for handler in (on_loop, in_thread):
                await (await app.enqueue(handler.job(), id=f"j-{handler.topic}")).result(timeout=30)
        log.info("outside")
    finally:
        log.removeHandler(keep)
    loop, thread, outside = (json.loads(line) for line in seen)
    assert [("loop", "j-loop", 1), ("thread", "j-thread", 1)] == [
        (line["topic"], line["id"], line["attempt"]) for line in (loop, thread)
    ]
    assert "topic" not in outside
