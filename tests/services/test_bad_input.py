"""
Bad input: each a clear error, and nothing is stored.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duly import Duly, LayoutMismatch, UsageError
from tests.shards import on_all

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001


async def stored(app) -> int:
    store = await app.store()
    return sum(await on_all(store, "jobs", "HLEN")) + sum(await on_all(store, "events", "XLEN"))


@pytest.mark.parametrize(
    ("topic", "payload", "options", "message"),
    [
        ("no spaces", {}, {}, "invalid topic 'no spaces'"),
        ("", {}, {}, "invalid topic ''"),
        ("-dash", {}, {}, "begin with a letter or a digit"),
        ("a/b", {}, {}, "invalid topic"),
        ("t" * 101, {}, {}, "invalid topic"),
        ("t", {}, {"id": "no spaces"}, "invalid job id 'no spaces'"),
        ("t", {}, {"id": ""}, "invalid job id ''"),
        ("t", {}, {"id": ".."}, "invalid job id"),
        ("t", {}, {"id": "x" * 201}, "invalid job id"),
        ("t", {}, {"id": 7}, "invalid job id 7"),
        ("t", "x" * 300_000, {}, "payload is 300002 bytes, the limit is 262144"),
        ("t", object(), {}, "payload cannot be written as JSON"),
        ("t", {"x": float("nan")}, {}, "JSON has no such number"),
        ("t", {}, {"context": {"x": "y" * 9_000}}, "context is .* bytes, the limit is 8192"),
        ("t", {}, {"context": {"x": object()}}, "context cannot be written as JSON"),
        ("t", {}, {"context": ["no dict"]}, "context must be a dict"),
        ("t", {}, {"due_at": NAIVE}, "has no time zone"),
        ("t", {}, {"expires": NAIVE}, "has no time zone"),
        ("t", {}, {"due_at": "tomorrow"}, "due_at must be a datetime"),
        ("t", {}, {"delay": -1}, "must be zero or more"),
        ("t", {}, {"delay": timedelta(seconds=-1)}, "must be zero or more"),
        ("t", {}, {"delay": b"5"}, "delay must be seconds, a timedelta or text like 1h30m, not b'5'"),
        ("t", {}, {"delay": "5 minutes"}, "delay='5 minutes' is no duration; write 500ms, 15s, 1h30m"),
        ("t", {}, {"ttr": "soon"}, "ttr='soon' is no duration; write"),
        ("t", {}, {"retain": "1y"}, "retain='1y' is no duration; write"),
        ("t", {}, {"expires": "5m"}, "expires must be a datetime with a time zone, such as"),
        ("t", {}, {"delay": float("nan")}, "must be zero or more"),
        ("t", {}, {"delay": 1, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}, "either delay or due_at"),
        ("t", {}, {"ttr": 0}, "ttr must be more than zero"),
        ("t", {}, {"max_attempts": 0}, "max_attempts=0 must be"),
        ("t", {}, {"max_crashes": True}, "max_crashes=True must be"),
        ("t", {}, {"priority": "urgent"}, "must be one of"),
        ("t", {}, {"on_conflict": "ignore"}, "must be keep, replace or raise"),
        ("t", {}, {"retain": -1}, "retain=-1 must be zero or more"),
        ("t", {}, {"backoff": lambda _: 1}, "cannot travel with a job"),
        ("t", {}, {"backoff": 5}, "backoff must be"),
        ("t", {}, {"dealy": 5}, "unknown option dealy; did you mean delay"),
    ],
)
async def test_a_wrong_job_is_refused_and_nothing_is_stored(app, topic, payload, options, message):
    with pytest.raises(UsageError, match=message):
        await app.enqueue(topic, payload, **options)
    assert 0 == await stored(app)


async def test_a_handler_cannot_be_called_with_what_it_does_not_take(app):
    @app.handler("greet")
    async def greet(name: str, *, times: int = 1) -> None: ...

    for wrong in ((), ("x", "y"), (7,)):
        with pytest.raises(UsageError):
            greet.job(*wrong)
    with pytest.raises(UsageError):
        greet.job("x", times="often")
    with pytest.raises(UsageError):
        greet.job("x", loudly=True)
    assert 0 == await stored(app)


async def test_one_wrong_job_among_many_is_an_outcome_and_the_others_are_stored(app):
    @app.handler("greet")
    async def greet(name: str) -> None: ...

    good, bad, fine = await app.enqueue_many(
        [greet.job("a"), greet.job("b").options(delay=-1), greet.job("c").options(id="c")]
    )
    assert (True, True) == (good.created, fine.created)
    assert isinstance(bad, UsageError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "bad topic"}, "invalid topic"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"ttr": 0}, "ttr"),
        ({"concurrency": 0}, "concurrency"),
        ({"backoff": "fast"}, "backoff"),
        ({"run_in": "space"}, "run_in"),
        ({"run_in": "process"}, "runs on the event loop"),
    ],
)
async def test_a_wrong_handler_is_refused(app, options, message):
    topic = options.pop("topic", "t")
    with pytest.raises(UsageError, match=message):

        @app.handler(topic, **options)
        async def handler() -> None: ...


async def test_a_topic_has_one_handler(app):
    @app.handler("t")
    async def first() -> None: ...

    with pytest.raises(UsageError, match="has a handler already"):

        @app.handler("t")
        async def second() -> None: ...

    with pytest.raises(UsageError, match="has no handler"):
        app.remove_handler("unknown")


async def test_another_shard_count_or_layout_is_refused(app, make_app, shards):
    store = await app.store()
    told = f"shard count {shards}, this client expects 4: set shards = {shards}"
    with pytest.raises(LayoutMismatch, match=told):
        await make_app(shards=4).store()
    await store.link.call("HSET", store.keys[-1].fixed["meta"], "layout", "0")
    with pytest.raises(LayoutMismatch, match="layout version 0"):
        await make_app().store()


async def test_wrong_settings_are_refused():
    for wrong, message in (
        ({"leese": 5}, "did you mean lease"),
        ({"lease": "soon"}, "no duration"),
        ({"concurrency": 0}, "at least 1"),
        ({"url": "localhost:6379"}, "must look like"),
        ({"namespace": "a b"}, "namespace"),
    ):
        with pytest.raises(UsageError, match=message):
            Duly(**wrong)
