"""
Every mistake ends with a sentence and an exit code: 1 no, 2 usage, 3 no store.
"""

from __future__ import annotations

import socketserver
import threading
from pathlib import Path

import pytest

LOOKING = [
    ("jobs", "ls"),
    ("jobs", "show", "mail/a"),
    ("jobs", "cancel", "mail/a"),
    ("dead", "ls"),
    ("topics", "ls"),
    ("workers", "ls"),
    ("stats",),
]


def ended(answer, code, said):
    assert (code, "") == answer[:2]
    assert said in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wrok",), "did you mean work?"),
        (("zzzzzz",), "No such command 'zzzzzz'"),
        (("jobs", "lss"), "No such command 'lss'"),
        (("jobs", "ls", "--limt", "3"), "No such option"),
        (("topics", "pause"), "Missing argument 'TOPIC'"),
        (("stats", "mail"), "Got unexpected extra argument"),
        (("completion", "tcsh"), "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_words_that_mean_nothing(duly, words, said):
    ended(duly(*words), 2, said)


def test_a_group_alone_shows_its_commands(duly):
    answer = duly("jobs")
    assert 2 == answer.code
    assert "reschedule" in answer.err


@pytest.mark.parametrize("words", LOOKING)
def test_a_namespace_that_nobody_made_is_not_made_by_looking(duly, words):
    ended(duly(*words, "--namespace", "typo"), 1, "there is no namespace 'typo'")
    ended(duly(*words, "--namespace", "typo"), 1, "no app has used it yet")


def test_a_namespace_of_another_shape_is_refused(duly, monkeypatch, shards):
    assert 0 == duly("enqueue", "mail").code
    monkeypatch.setenv("DULY_SHARDS", "4")
    ended(duly("stats"), 1, f"has shard count {shards}, this client expects 4: set shards = {shards}")


def test_a_layout_of_another_release_is_refused(duly, valkey, namespace):
    import redis

    assert 0 == duly("enqueue", "mail").code
    with redis.Redis(unix_socket_path=str(valkey.socket)) as raw:
        raw.hset(f"{{{namespace}:0}}:meta", "layout", "99")
    ended(duly("stats"), 1, "has layout version 99")


@pytest.mark.parametrize("words", [*LOOKING, ("enqueue", "mail"), ("submit", "mail", "--count", "1")])
def test_a_server_that_cannot_be_reached(duly, words, impatient):
    ended(duly(*words, "--url", "unix:///nowhere/at/all.sock"), 3, "cannot use /nowhere/at/all.sock")


class _Web(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1_000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_server_that_is_no_redis(duly):
    with socketserver.TCPServer(("127.0.0.1", 0), _Web) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        port = web.server_address[1]
        answer = duly("stats", "--url", f"redis://127.0.0.1:{port}/0")
        web.shutdown()
        thread.join()
    ended(answer, 3, f"127.0.0.1:{port}")
    assert "is not a Redis or Valkey server" in answer.err


def test_a_url_that_is_none(duly):
    ended(duly("stats", "--url", "localhost:6379"), 2, "url must look like redis://host:6379/0")
    ended(duly("stats", "--url", "ftp://localhost"), 2, "write redis://host:port/0")


@pytest.mark.parametrize("words", LOOKING)
def test_looking_where_there_is_no_queue_makes_none(duly, monkeypatch, tmp_path, words):
    monkeypatch.delenv("DULY_URL")
    ended(duly(*words), 3, f"there is no queue in {tmp_path / '.duly'}; go where the app runs")
    assert [] == list(tmp_path.iterdir())


def test_a_setting_that_does_not_exist_is_warned_about(duly, monkeypatch, caplog):
    monkeypatch.setenv("DULY_LEESE", "5s")
    monkeypatch.setattr("duly.settings._warned", set())
    assert 0 == duly("enqueue", "mail", "1").code
    assert "DULY_LEESE is ignored: unknown variable; did you mean DULY_LEASE?" in caplog.messages


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_disk_that_cannot_be_written_to_is_said(duly):
    answer = duly("submit", "--from", "-", "--rejects", "/dev/full", stdin=b"oops\n")
    assert 1 == answer.code
    assert "duly: [Errno 28]" in answer.err
