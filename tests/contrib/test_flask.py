"""
Flask: views send through the blocking twin, handlers run within the application context.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from flask import Flask, current_app, g, has_app_context

from duly import Duly, JobFailed, UsageError
from duly.contrib.flask import init_app, jobs
from duly.testing import TestBed
from tests.sync.conftest import working


@pytest.fixture
def queue(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace, drain_grace=0.2)
    yield app
    app.sync.close()


def make_flask(queue: Duly) -> Flask:
    flask = Flask("shop")
    flask.config["GREETING"] = "Hello"

    @queue.handler("greet.early")
    def early(name: str) -> str:
        return f"{current_app.config['GREETING']}, {name}!"

    init_app(flask, queue)

    @queue.handler("greet.late")
    async def late(name: str) -> str:
        return f"{current_app.config['GREETING']}, {name}!"

    @flask.post("/greet/<kind>/<name>")
    def greet(kind: str, name: str):
        handler = {"early": early, "late": late}[kind]
        job = jobs().sync.enqueue(handler.job(name), id=name)
        return {"topic": job.topic, "id": job.id}, 202

    @flask.get("/greet/<kind>/<name>")
    def greeting(kind: str, name: str):
        return {"greeting": jobs().sync.job(f"greet.{kind}", name).result(timeout=30)}

    return flask


@pytest.mark.parametrize("kind", ["early", "late"])
def test_a_view_sends_and_the_handler_finds_its_application(queue, kind):
    flask = make_flask(queue)
    client = flask.test_client()
    with working(queue):
        sent = client.post(f"/greet/{kind}/Ada")
        assert (202, {"topic": f"greet.{kind}", "id": "Ada"}) == (sent.status_code, sent.json)
        assert {"greeting": "Hello, Ada!"} == client.get(f"/greet/{kind}/Ada").json


def test_a_plain_call_of_a_handler_makes_no_context(queue):
    flask = Flask("shop")
    init_app(flask, queue)

    @queue.handler("where")
    def where() -> bool:
        return has_app_context()

    assert where() is False
    with flask.app_context():
        assert where() is True


def test_an_application_has_one_app_and_says_if_it_has_none(queue):
    flask = Flask("shop")
    with flask.app_context(), pytest.raises(UsageError, match="call init_app"):
        jobs()
    init_app(flask, queue)
    with flask.app_context():
        assert queue is jobs()
    with pytest.raises(UsageError, match="has a Duly app already"):
        init_app(flask, Duly("redis://localhost"))


def made_three_times(queue: Duly) -> list[Flask]:
    """
    The same factory three times, as tests of an application call it; each has a database of its own.
    """

    def create_app(database: str) -> Flask:
        flask = Flask("shop")
        flask.config["DATABASE"] = database
        init_app(flask, queue)
        return flask

    return [create_app(f"sqlite:///{number}") for number in (1, 2, 3)]


@pytest.fixture
def databases(queue):
    """
    Two handlers that return the database of the application that they find.
    """

    @queue.handler("database.plain")
    def plain() -> str:
        g.used = getattr(g, "used", 0) + 1
        return f"{current_app.config['DATABASE']} {g.used}"

    @queue.handler("database.async")
    async def on_loop() -> str:
        g.used = getattr(g, "used", 0) + 1
        return f"{current_app.config['DATABASE']} {g.used}"

    return plain, on_loop


def test_handlers_find_the_application_that_was_made_last(queue, databases):
    made_three_times(queue)
    with working(queue):
        for handler in databases:
            assert "sqlite:///3 1" == queue.sync.enqueue(handler.job()).result(timeout=30)


def test_handlers_find_the_application_in_whose_context_a_test_drains(queue, databases, valkey):
    first, second, _ = made_three_times(queue)
    stranger = Flask("another")
    for flask, found in ((first, 1), (second, 2), (stranger, 3)):
        with TestBed(queue, valkey.url) as bed, flask.app_context():
            for handler in databases:
                queue.sync.enqueue(handler.job())
                queue.sync.enqueue(handler.job())
            # Each run has a `g` of its own.
            assert [f"sqlite:///{found} 1"] * 4 == [ran.result for ran in bed.sync.drain(raises=True)]


async def test_what_a_decorator_returns_is_awaited_within_the_context(queue):
    made_three_times(queue)

    async def body() -> str:
        return current_app.config["DATABASE"]

    run = queue.handlers.wrap(lambda: body())  # noqa: PLW0108  # a plain function, as decorators make them
    assert "sqlite:///3" == await run()


def test_a_handler_is_wrapped_once_however_often_an_application_is_made(queue, databases):
    for _ in range(50):
        made_three_times(queue)
    for handler in databases:
        again = queue.handler(f"{handler.topic}.again")(handler)  # the same function for another topic
        assert handler.fn is handler.entry.__wrapped__ is again.entry.__wrapped__


def test_a_handler_that_another_one_calls_shares_its_context(queue):
    init_app(Flask("shop"), queue)

    @queue.handler("inner")
    def inner() -> str:
        return g.tenant

    @queue.handler("inner.async")
    async def inner_async() -> str:
        return g.tenant

    @queue.handler("outer")
    def outer() -> str:
        g.tenant = "one"
        return inner()

    @queue.handler("outer.async")
    async def outer_async() -> str:
        g.tenant = "two"
        return inner() + await inner_async()

    with working(queue):
        assert "one" == queue.sync.enqueue(outer.job()).result(timeout=30)
        assert "twotwo" == queue.sync.enqueue(outer_async.job()).result(timeout=30)


JOBS = """
    from flask import current_app
    from duly import Duly

    queue = Duly()


    @queue.handler("greet", run_in="process", max_attempts=1)
    def greet(name: str) -> str:
        return f"{current_app.config['GREETING']}, {name}!"
"""

WSGI = """
    from flask import Flask
    from duly.contrib.flask import init_app
    from jobs import queue


    def create_app():
        flask = Flask("shop")
        flask.config["GREETING"] = "Hello"
        init_app(flask, queue)
        return flask


    app = create_app()
"""


@pytest.mark.parametrize(
    ("last_line", "outcome"),
    [
        ("", "RuntimeError: Working outside of application context."),
        ("import wsgi  # for processes: it makes the application", "Hello, Ada!"),
    ],
)
def test_a_process_has_the_application_that_the_module_of_its_handler_makes(
    queue, valkey, namespace, tmp_path, last_line, outcome
):
    (tmp_path / "jobs.py").write_text(textwrap.dedent(JOBS) + f"\n\n{last_line}\n")
    (tmp_path / "wsgi.py").write_text(textwrap.dedent(WSGI))
    queue.sync.enqueue("greet", {"name": "Ada"}, id="a")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    done = subprocess.run(
        [sys.executable, "-m", "duly", "work", "wsgi:queue", "--burst"],
        cwd=tmp_path,
        env=clean | {"DULY_URL": valkey.url, "DULY_NAMESPACE": namespace},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert 0 == done.returncode, done.stderr
    try:
        told = queue.sync.job("greet", "a").result(timeout=10)
    except JobFailed as error:
        told = str(error)
    assert outcome in told
