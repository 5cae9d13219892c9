"""
The script of a web page that follows events, as the page on the HTTP service shows it, run by node.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue

import httpx
import pytest

from duly import Duly
from duly.apikeys import KeyRing
from duly.http import streamtokens
from duly.http.settings import ServiceSettings
from tests.docs.pages import ROOT, blocks
from tests.http.service import Served
from tests.http.test_live import do, enqueue
from tests.tools import tool

PAGE = ROOT / "docs" / "how-to" / "http-operations.md"
BROWSER = ROOT / "tests" / "http" / "clients" / "page.mjs"
NODE = Path(sys.prefix) / "clients" / "node_modules"


class Clock:
    """
    The time as tokens see it.
    """

    def __init__(self):
        self.later_s = 0.0

    def time(self):
        return time.time() + self.later_s


class Application:
    """
    What a page asks for a token; it gives none while it is *held*.
    """

    def __init__(self, service, key):
        self.asked, self.given = threading.Semaphore(0), threading.Semaphore(0)
        application = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                application.asked.release()
                application.given.acquire(timeout=60)
                headers = {"Authorization": f"Bearer {key}"}
                answer = httpx.post(f"{service}/v1/events/token", json={"topics": ["mail"]}, headers=headers)
                self.send_response(answer.status_code)
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def script(tmp_path):
    [block] = [each for each in blocks(PAGE) if each.language == "js"]
    if not (NODE / "eventsource").exists():
        text = "no EventSource for node here: make clients"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
    (tmp_path / "node_modules").symlink_to(NODE)
    shutil.copy(BROWSER, tmp_path)
    path = tmp_path / "shown.mjs"
    path.write_text('import "./page.mjs";\n\n' + block.text, "utf-8")
    return path


@pytest.fixture
def started(tmp_path):
    """
    Start a program; the answer is a queue of what it says, line by line.
    """
    processes = []

    def start(*command):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
        said = Queue()
        threading.Thread(target=lambda: [said.put(line) for line in process.stdout], daemon=True).start()
        return lambda timeout=60: json.loads(said.get(timeout=timeout))

    yield start
    for each in processes:
        each.kill()
        each.wait()
        each.stdout.close()


def test_a_page_follows_events_over_the_end_of_its_token_and_misses_none(
    valkey, namespace, script, started, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr(streamtokens, "time", clock)
    app = Duly(valkey.url, namespace=namespace)

    async def create(other):
        return (await KeyRing(await other.store()).create("page", ["read"]))[0]

    key = do(app, create)
    with (
        Served(app, ServiceSettings(heartbeat_s=0.1)) as served,
        Application(served.url, key) as application,
    ):
        application.given.release()
        said = started(tool("node"), str(script), served.url, application.url)
        assert "open" == said()
        assert application.asked.acquire(timeout=60)
        ids, words = [], []

        def listen(**timeout):
            line = said(**timeout)
            if isinstance(line, str):
                words.append(line)
            else:
                ids.append(line["id"])

        # It shows what happens from now on, and when that is only the service knows.
        sent = []
        while not ids:
            sent.append(f"a{len(sent)}")
            enqueue(app, sent[-1])
            with suppress(Empty):
                listen(timeout=1)
        while sent[-1] not in ids:
            listen()
        clock.later_s = streamtokens.LIFETIME_S
        assert application.asked.acquire(timeout=60), "its token has ended, and it asks for another"
        enqueue(app, "b")
        application.given.release()
        while "b" not in ids:
            listen()
        enqueue(app, "c")
        while "c" not in ids:
            listen()
        assert [*sent[-len(ids) + 2 :], "b", "c"] == ids
        assert ["lost", "closed", "open"] == words
        assert not application.asked.acquire(blocking=False)
