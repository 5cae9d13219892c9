"""
Log lines about jobs: fields on each, and never what a job was given.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import Literal

import pydantic
import pytest

from duly import Bury, Retry, Snooze, current_job
from duly.logs import JsonFormatter, TextFormatter
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, tally, working
from tests.shards import shard_of

SECRET = "s3cr3t-4711"
FIELDS = {"topic", "id", "attempt", "token", "worker", "shard"}


@pytest.fixture
def lines(caplog):
    """
    Whatever any logger says, at any level, as text and as JSON.
    """
    caplog.set_level(0)
    forms = (TextFormatter(), JsonFormatter())

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
        ("buried", "t/buried, attempt 1: dead: buried: no more"),
        ("slow", "t/slow ran longer than its time to run"),
        ("slow", "t/slow, attempt 1: dead: TimeoutError"),
    ):
        [record] = [each for each in about(caplog, id_) if each.getMessage().startswith(start)]
        assert vars(record).keys() >= FIELDS, start
        shard = shard_of(await app.store(), "t", id_)
        assert ("t", 1, shard) == (record.topic, record.attempt, record.shard)


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


async def test_one_line_tells_of_a_job_that_is_done(app, caplog):
    caplog.set_level(logging.DEBUG, "duly.runs")

    @app.handler("loop")
    async def on_loop() -> int:
        await asyncio.sleep(0.02)
        return 7

    @app.handler("thread", max_attempts=2, backoff=lambda _: 0.01)
    def in_thread() -> None:
        if current_job().attempt == 1:
            raise ValueError

    async with working(app):
        await becomes(await app.enqueue(on_loop.job(), id="a"), "succeeded")
        app.on_success(lambda *_: None)  # somebody to tell: it takes another way
        await becomes(await app.enqueue(in_thread.job(), id="b", delay=0.01), "succeeded")
        await eventually(lambda: len(about(caplog, "b")) == 2, 30)
    [first] = about(caplog, "a")
    _, second = about(caplog, "b")
    for record, start in ((first, "loop/a, attempt 1: done, "), (second, "thread/b, attempt 2: done, ")):
        assert ("DEBUG", True) == (record.levelname, record.getMessage().startswith(start))
        assert vars(record).keys() >= FIELDS
        assert f"started {record.lateness_ms} ms late, took {record.duration_ms:g} ms" in record.getMessage()
        assert record.lateness_ms >= 0
        assert {"lateness_ms", "duration_ms", "topic"} <= json.loads(JsonFormatter().format(record)).keys()
    assert first.duration_ms >= 20


async def test_the_message_of_a_failure_is_in_its_line(app, lines, caplog):
    @app.handler("t", max_attempts=1)
    async def handler() -> None:
        raise ValueError("no such user\nin this shop " + "x" * 1_000)

    @app.on_failure
    def hook(job, error):
        raise LookupError("nobody to tell")

    async with working(app):
        await becomes(await app.enqueue(handler.job(), id="a"), "dead")
        await eventually(lambda: "nobody to tell" in lines(), 30)
    text = lines()
    assert "dead: ValueError at test_logs.py:" in text
    assert ": no such user in this shop xxx" in text
    assert "hook on_failure failed: LookupError at test_logs.py:" in text
    assert {ValueError, LookupError} == {record.exc_info[0] for record in about(caplog, "a")}
    assert "Traceback" not in text
    assert max(map(len, text.splitlines())) < 700


async def test_nothing_that_a_job_was_given_shows_in_any_line(app, lines, caplog):
    """
    With a secret in payload, context, progress and result, as long as no message quotes it.
    """

    def leak() -> object:
        match current_job().id:
            case "raises":
                raise ValueError("bad card")
            case "chains":
                try:
                    {}[SECRET]
                except KeyError as error:
                    raise RuntimeError("no such card") from error
            case "buries":
                return Bury("no card")
            case "retries":
                raise Retry(0.01, "no bank")
            case "snoozes" if not current_job().cancelled and "snoozed" not in seen:
                seen.append("snoozed")
                return Snooze(0.01)
            case "no-json":
                return {SECRET: object()}
            case "no-number":
                return {SECRET: math.inf}
            case "changed":
                return {SECRET: (1, 2)}
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

    @app.handler("choice", max_attempts=1)
    async def choice(kind: Literal["a", "b"] = "a") -> tuple[Literal["a"], ...]:
        return (SECRET,)

    class Model(pydantic.BaseModel):
        @pydantic.model_validator(mode="before")
        @classmethod
        def refuse(cls, value: object) -> object:
            raise ValueError("not a model")

    @app.handler("checked")
    async def checked(model: Model) -> None: ...

    app.handlers.add(processes.end)

    @app.on_failure
    def hook(job, error):
        raise LookupError("a hook")

    @app.on_success
    async def other_hook(job, result):
        raise LookupError("a hook")

    @app.around_handler
    async def around(job, call_next):
        if job.id == "around":
            raise ValueError("around it")
        return await call_next()

    context = {"key": SECRET}
    ids = (
        "plain",
        "raises",
        "chains",
        "buries",
        "retries",
        "snoozes",
        "no-json",
        "no-number",
        "changed",
        "around",
    )
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
            await app.enqueue("choice", {"kind": f"{SECRET} - at `$.x`"}, id="unchosen", context=context),
            await app.enqueue("choice", {}, id="another", context=context),
            await app.enqueue("checked", {"model": SECRET}, id="refused", context=context),
            await app.enqueue("end", {"how": "raise"}, id="child", context=context, max_attempts=1),
        ]
        for job in jobs:

            async def ended(job=job) -> None:
                assert (await job.get()).state.ended, job

            await eventually(ended, 60)
    # It was there, and is kept where it belongs.
    assert SECRET in (await app.job("loop", "raises").get()).payload.decode()
    text = lines()
    for told in (
        "loop/raises, attempt 2: dead: ",
        "at result[...]",
        "result[...] is inf",
        "result[...] is of type tuple",
        "typed/unbound, attempt 1: dead: ",
        "choice/unchosen, attempt 1: dead: unreadable: payload of choice: Invalid enum value - at `$.kind`",
        "not what its handler says it returns: Invalid enum value - at `$[0]`",
        "hook on_failure failed",
        "end/child, ",
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
