"""
Flask: views send through the blocking twin, handlers run within the application context.
"""

from __future__ import annotations

import pytest
from flask import Flask, current_app, has_app_context

from duly import Duly, UsageError
from duly.contrib.flask import init_app, jobs
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
