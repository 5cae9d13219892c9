"""
Callbacks from the command line, delivered by real processes to a real receiver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from duly.callbacks import new_secret
from tests.cli.test_listen import Listening
from tests.docs.pages import ROOT

SECRET = new_secret()
SHOP = """
from duly import Duly

app = Duly()


@app.handler("mail")
async def mail(n: int) -> int:
    return n
"""


@pytest.fixture
def delivering(here, tmp_path):
    """
    Start a process that delivers, and end it.
    """
    started = []

    def start(*words):
        environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}",
            "DULY_CALLBACK_SECRETS": SECRET,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "duly", *words],
            env=environ,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def receiver(here, monkeypatch):
    with Listening("--json", "--secret", SECRET) as listening:
        # For those who send and those who deliver.
        monkeypatch.setenv("DULY_CALLBACK_ALLOW", listening.url.removeprefix("http://"))
        yield listening


def end(process):
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (0, "Traceback" in err) == (process.returncode, False), err
    assert SECRET not in err
    return err


def test_serve_delivers_what_a_job_and_a_topic_ask_for(duly, delivering, receiver):
    process = delivering("serve", "--port", "0")
    assert 0 == duly("enqueue", "mail", '{"n":1}', "--id", "a", "--callback", f"{receiver.url}/a").code
    document = json.loads(receiver.line())
    assert ("/a", "ok", "mail/a", {"n": 1}) == (
        document["path"],
        document["signature"],
        document["event"]["subject"],
        document["event"]["data"],
    )
    assert 0 == duly("topics", "set", "order", "--callback", f"{receiver.url}/topic").code
    assert 0 == duly("enqueue", "order", "2").code
    assert "/topic" == json.loads(receiver.line())["path"]
    end(process)


def test_work_delivers_beside_its_handlers_if_told_to(duly, delivering, receiver, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    process = delivering("work", "shop:app", "--callbacks")
    duly("enqueue", "mail", '{"n":1}', "--callback", receiver.url)
    assert {"n": 1} == json.loads(receiver.line())["event"]["data"]
    assert "2\n" == duly("enqueue", "mail", '{"n":2}', "--wait", "60").out
    end(process)


def test_serve_without_a_secret_says_that_it_delivers_nothing(here):
    process = subprocess.Popen(
        [sys.executable, "-m", "duly", "serve", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        lines = [process.stderr.readline() for _ in range(2)]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert any("DULY_CALLBACK_SECRETS" in line for line in lines), lines


def test_an_allow_list_that_cannot_be_read_ends_serve_with_a_sentence(here, monkeypatch):
    monkeypatch.setenv("DULY_CALLBACK_SECRETS", SECRET)
    monkeypatch.setenv("DULY_CALLBACK_ALLOW", "10.*")
    done = subprocess.run(
        [sys.executable, "-m", "duly", "serve", "--port", "0"], capture_output=True, text=True, timeout=60
    )
    assert 2 == done.returncode, done.stderr
    assert "duly: allow: '10.*'" in done.stderr
    assert "Traceback" not in done.stderr


def test_topics_tell_their_callback(duly):
    url = "https://example.com/hook"
    answer = duly("topics", "set", "mail", "--callback", url, "--limit", "5", "--json")
    assert {"topic": "mail", "limit": 5, "callback": url} == answer.json
    assert [url] == [line["callback"] for line in duly("topics", "ls", "--json").lines]
    assert "mail is run by workers\n" == duly("topics", "set", "mail", "--callback", "none").out
    assert [None] == [line["callback"] for line in duly("topics", "ls", "--json").lines]


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "set", "mail"),
        ("topics", "set", "mail", "--callback", "mailto:a@b"),
        ("enqueue", "mail", "--callback", "https://a:b@example.com/"),
        ("work", "shop:app", "--burst", "--callbacks"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(duly, words):
    answer = duly(*words)
    assert (2, "") == (answer.code, answer.out)
    assert "callback" in answer.err
