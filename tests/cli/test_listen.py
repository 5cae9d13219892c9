"""
``duly listen``: what arrives is printed, and what is not signed right is refused.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from duly.callbacks import new_secret, sign

SECRET = new_secret()
BODY = json.dumps({"subject": "order.paid/o-42", "attempt": 2, "data": {"order": 42}}).encode()


class Listening:
    """
    The command in a process of its own.
    """

    def __init__(self, *options, **environ):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "duly", "listen", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
        )
        self.greeting = self.process.stderr.readline()
        assert self.greeting.startswith("listening on http://127.0.0.1:"), self.greeting
        self.url = self.greeting.split()[2].rstrip(";")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def post(self, body=BODY, secret=SECRET, **headers):
        now = int(time.time())
        signed = {"webhook-id": "m1", "webhook-timestamp": str(now)}
        if secret:
            signed["webhook-signature"] = sign([secret], "m1", now, body)
        request = urllib.request.Request(f"{self.url}/hook", body, {**signed, **headers})  # noqa: S310  # ours
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def line(self):
        return self.process.stdout.readline().rstrip()


def test_a_callback_is_verified_and_printed():
    with Listening("--secret", SECRET) as listening:
        assert 200 == listening.post()
        assert listening.line().endswith("order.paid/o-42 attempt 2: signature ok, answered 200")
        assert '  {"order": 42}' == listening.line()


def test_a_wrong_signature_is_refused():
    with Listening("--secret", SECRET) as listening:
        assert 401 == listening.post(secret=new_secret())
        assert listening.line().endswith("signature no signature fits, answered 401")
        listening.line()
        assert 401 == listening.post(secret=None)
        assert "is missing" in listening.line()


def test_json_is_a_line_for_each_callback():
    with Listening(
        "--json", "--status", "503", DULY_CALLBACK_SECRETS=f"{new_secret()},order.*:{SECRET}"
    ) as listening:
        assert 503 == listening.post()
        document = json.loads(listening.line())
        assert {"at", "path", "signature", "status", "event", "text"} == document.keys()
        assert ("/hook", "ok", 503, None) == tuple(
            document[name] for name in ("path", "signature", "status", "text")
        )
        assert {"order": 42} == document["event"]["data"]
        assert 503 == listening.post(b"not json")
        assert "not json" == json.loads(listening.line())["text"]


def test_without_a_secret_it_says_that_nothing_is_checked():
    with Listening(DULY_CALLBACK_SECRETS="") as listening:
        assert "not checked" in listening.greeting
        assert 200 == listening.post(secret=None)
        assert "signature not checked" in listening.line()


def test_more_than_it_needs_is_refused():
    with Listening() as listening:
        assert 413 == listening.post(b"", **{"Content-Length": "99999999"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(number):
    with Listening() as listening:
        listening.process.send_signal(number)
        assert 0 == listening.process.wait(60)


def test_a_new_secret_is_printed_and_works():
    done = subprocess.run(
        [sys.executable, "-m", "duly", "listen", "--new-secret"], capture_output=True, text=True, check=True
    )
    assert sign([done.stdout.strip()], "a", 1, b"").startswith("v1,")


def test_what_is_no_secret_is_said_without_a_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "duly", "listen", "--secret", "hunter2"], capture_output=True, text=True
    )
    assert 2 == done.returncode
    assert "whsec_" in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr
