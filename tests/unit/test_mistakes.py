"""
What is typed first, and wrongly, is answered with what to type.  Nothing is connected.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from duly import Duly, NewJob, UsageError
from duly.handle import JobHandle
from duly.http import async_endpoint
from duly.job import JobKey


@pytest.fixture
def app() -> Duly:
    return Duly("unix:///nowhere/duly.sock", socket_timeout="100ms")


@pytest.fixture
def greet(app):
    @app.handler("greet")
    async def greet(name: str, times: int = 1) -> str: ...

    return greet


def refused(sentence: str):
    return pytest.raises(UsageError, match=f"^{re.escape(sentence)}")


# -- handlers ---------------------------------------------------------------------------------------------


def test_a_decorator_without_its_brackets_says_what_to_type(app):
    def shout(name: str) -> None: ...

    with refused('@app.handler needs a topic: write @app.handler("shout")'):
        app.handler(shout)
    with refused('@app.batch_handler needs a topic: write @app.batch_handler("shout")'):
        app.batch_handler(shout)
    assert [] == app.handlers.topics()


def test_a_decorator_without_a_topic_says_what_to_type(app):
    with refused("@app.handler needs a topic: write @app.handler("):
        app.handler()
    with refused("@app.batch_handler needs a topic: write @app.batch_handler("):
        app.batch_handler(max_rows=5)


def test_a_decorator_names_the_options_that_it_has(app):
    with refused("@app.handler has no option max_attempt; did you mean max_attempts?"):
        app.handler("greet", max_attempt=3)
    with refused("@app.handler has no option priority; known are max_attempts, backoff, ttr,"):
        app.handler("greet", priority="high")
    with refused("@app.handler takes one topic, and options by their names: max_attempts,"):
        app.handler("greet", 5)


@pytest.mark.parametrize("name", ["delay", "apply_async", "enqueue", "send", "kiq"])
def test_how_other_libraries_send_is_answered_with_how_this_one_does(greet, name):
    with pytest.raises(
        AttributeError, match=rf"a handler has no {name}\(\): write await app.enqueue\(greet.job"
    ):
        getattr(greet, name)
    assert not hasattr(greet, name)
    with pytest.raises(AttributeError, match="'AsyncHandler' object has no attribute 'topics'"):
        greet.topics  # noqa: B018  # to look is enough


def test_an_option_among_the_arguments_is_sent_beside_them(greet):
    with pytest.raises(
        UsageError, match=r"an option stands beside the job: app.enqueue\(greet.job\(…\), delay=…\)$"
    ):
        greet.job("Ada", delay="5m")


# -- sending ----------------------------------------------------------------------------------------------


def wrong(app, greet):
    """
    What stands in the place of a job, what behind it, and the beginning of the answer.
    """

    def plain(name: str) -> None: ...

    return [
        (greet, ("Ada",), 'app.enqueue takes a job: write app.enqueue(greet.job("Ada"))'),
        (greet, ("Ada", 3), 'app.enqueue takes a job: write app.enqueue(greet.job("Ada", 3))'),
        (greet, (), "app.enqueue takes a job: write app.enqueue(greet.job(…))"),
        (greet, ({"name": "Ada"},), "app.enqueue takes a job: write app.enqueue(greet.job(…))"),
        (greet, ("x" * 100,), "app.enqueue takes a job: write app.enqueue(greet.job(…))"),
        (greet("Ada"), (), "greet(…) calls the function here and now: write app.enqueue(greet.job(…))"),
        (
            plain,
            ("Ada",),
            'plain is no handler: decorate it with @app.handler("plain"), then write app.enqueue(plain',
        ),
        (
            {"topic": "greet"},
            (),
            "app.enqueue takes a job or the name of a topic, not a dict: write app.enqueue(",
        ),
        (None, (), "app.enqueue takes a job or the name of a topic, not None: write"),
        (5, (), "app.enqueue takes a job or the name of a topic, not a int"),
        ([greet.job("Ada")], (), "app.enqueue takes one job: write app.enqueue_many(jobs)"),
        (JobHandle(app, JobKey("greet", "a")), (), "<JobHandle greet/a> was sent already; to run it again"),
        (
            greet.job("Ada"),
            ("Bob",),
            "the job of greet has its arguments already: write them into handler.job(…)",
        ),
        (
            "greet",
            ("Ada", "Bob"),
            "a job by the name of its topic has one payload, which may be a list or a dict:",
        ),
        (
            NewJob("greet", 5),
            (),
            "payload of a NewJob must be bytes of JSON, not 5: use Handler.job(), or",
        ),
        (NewJob("no topic", b"5"), (), "invalid topic 'no topic'"),
    ]


async def test_what_is_no_job_is_answered_with_what_to_type(app, greet):
    for job, more, sentence in wrong(app, greet):
        with refused(sentence):
            await app.enqueue(job, *more)


def test_the_blocking_twin_answers_alike(app, greet):
    for job, more, sentence in wrong(app, greet):
        with refused(sentence):
            app.sync.enqueue(job, *more)
    app.sync.close()


async def test_arguments_by_name_are_told_where_they_belong(app, greet):
    with refused("app.enqueue takes a job: write app.enqueue(greet.job(…))"):
        await app.enqueue(greet, name="Ada")
    with refused("unknown option name; known are id, delay"):
        await app.enqueue("greet", name="Ada")


async def test_what_holds_no_jobs_is_answered_with_what_to_type(app, greet):
    async def generated():
        yield greet.job("Ada")

    for jobs, sentence in [
        (greet.job("Ada"), "enqueue_many takes many jobs: write app.enqueue(job) for one"),
        (greet, "enqueue_many takes jobs: write app.enqueue_many([greet.job(…), …])"),
        ("greet", "enqueue_many takes a list of jobs, or another iterable of them, not a str: write"),
        ({"topic": "greet"}, "enqueue_many takes a list of jobs, or another iterable of them, not a dict"),
        (None, "enqueue_many takes a list of jobs, or another iterable of them, not None"),
        (
            generated(),
            "enqueue_many takes a list of jobs, or another iterable of them, not a async_generator",
        ),
    ]:
        with refused(sentence):
            await app.enqueue_many(jobs)
        with refused(sentence):
            # In a thread of its own, because this one runs a loop.
            await asyncio.to_thread(app.sync.enqueue_many, jobs)


# -- endpoints --------------------------------------------------------------------------------------------


def test_an_endpoint_without_a_handler_says_so(app):
    with refused("async_endpoint needs a handler, or the name of a topic: write async_endpoint("):
        async_endpoint("/orders", to=None, queue=app)
    with pytest.raises(UsageError, match=r"is no handler; decorate it with @queue.handler\(topic\)"):
        async_endpoint("/orders", print, to=None, queue=app)
