"""
Applications behind real servers and their kinds of workers: every request is answered, every job runs once.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from duly import Duly, JobState
from tests.ports import held_port

FLASK_PAGE = Path(__file__).parents[2] / "docs/how-to/flask.md"

DJANGO = """
    from django.http import JsonResponse
    from django.urls import path

    from duly.contrib.django import app


    async def buy(request, name):
        job = await app.enqueue("order.pay", {"order": 1}, id=name)
        return JsonResponse({"state": (await job.get()).state.name}, status=202)


    urlpatterns = [path("users/<name>", buy)]
"""

DJANGO_WSGI = """
    import os
    os.environ["DJANGO_SETTINGS_MODULE"] = "project"
    from django.core.wsgi import get_wsgi_application
    app = get_wsgi_application()
"""

FLASK = """
    import os
    from flask import Flask
    from duly import Duly

    queue = Duly(os.environ["QUEUE"], namespace=os.environ["QUEUE_NAMESPACE"])
    app = Flask("shop")


    @app.post("/users/<name>")
    def register(name: str):
        return {"id": queue.sync.enqueue("greet", {"name": name}, id=name).id}, 202
"""

FASTAPI = """
    import asyncio
    import os
    from fastapi import FastAPI
    from duly import Duly
    from duly.contrib.fastapi import lifespan

    queue = Duly(os.environ["QUEUE"], namespace=os.environ["QUEUE_NAMESPACE"])
    app = FastAPI(lifespan=lifespan(queue))


    @app.post("/users/{name}", status_code=202)
    async def register(name: str) -> str:
        return (await queue.enqueue("greet", {"name": name}, id=name)).id


    @app.post("/blocking/{name}", status_code=202)
    def register_blocking(name: str) -> str:
        return asyncio.run(queue.enqueue("greet", {"name": name}, id=name)).id
"""


@pytest.fixture
def serve(tmp_path, valkey, namespace):
    """
    Run a server on a port in the folder of the test.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "PYTEST"))}

    @contextmanager
    def run(*words: str, **files: str):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        log = tmp_path / "server.log"
        with held_port() as port, log.open("w") as output:
            words = tuple(word.replace("PORT", str(port)) for word in words)
            server = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=tmp_path,
                env=clean
                | {"QUEUE": valkey.url, "QUEUE_NAMESPACE": namespace, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=output,
                stderr=output,
            )
            try:
                _until(lambda: status(port, "/") is not None, log)
                server.port, server.log = port, log
                yield server
                server.terminate()
                assert server.wait(60) in (0, -signal.SIGTERM), log.read_text()
            finally:
                server.kill()
                server.wait()

    return run


def gunicorn(*words: str) -> tuple[str, ...]:
    return ("gunicorn", "--no-control-socket", "-b", "127.0.0.1:PORT", *words)


def status(port: int, path: str) -> int | None:
    """
    The status of the answer to a POST, None if there is none.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def statuses(port: int, paths: list[str], threads: int) -> Counter[int | None]:
    with ThreadPoolExecutor(threads) as pool:
        return Counter(pool.map(lambda path: status(port, path), paths))


def _until(check, log) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


SIZES = [(64, 16), pytest.param((600, 32), marks=pytest.mark.long)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_async_views_of_django_send_under_wsgi_from_many_threads(project, serve, size):
    requests, threads = size
    words = gunicorn("-k", "gthread", "--threads", str(threads), "wsgi:app")
    with serve(*words, wsgi=DJANGO_WSGI, **{"shop/urls": DJANGO}) as server:
        paths = [f"/users/u{number}" for number in range(requests)]
        assert {202: requests} == statuses(server.port, paths, threads), server.log.read_text()
    assert "Traceback" not in server.log.read_text()


def test_routes_of_fastapi_that_run_a_loop_of_their_own_leave_their_neighbours_alone(serve):
    with serve("uvicorn", "shop:app", "--port", "PORT", "--log-level", "warning", shop=FASTAPI) as server:
        paths = [f"/{kind}/{kind}{number}" for number in range(40) for kind in ("users", "blocking")]
        assert {202: 80} == statuses(server.port, paths, 16)
    assert "" == server.log.read_text()


@pytest.mark.parametrize(
    "words", [(), pytest.param(("--preload", "-w", "2"), marks=pytest.mark.long)], ids=str
)
def test_the_documented_flask_application_answers_under_gevent(serve, words):
    program = re.search(r"```python\n(.*?)\nclient = ", FLASK_PAGE.read_text(), re.DOTALL)[1]
    quiet = gunicorn("-k", "gevent", "--log-level", "warning", *words, "shop:app")
    with serve(*quiet, shop=program) as server:
        paths = [f"/users/u{number}" for number in range(200)]
        assert {202: 200} == statuses(server.port, paths, 20), server.log.read_text()
    # With --preload, gevent warns of what was imported before it patched.
    assert words or "" == server.log.read_text()


def begins(server: subprocess.Popen[bytes]) -> int:
    """
    How many processes of workers have begun.
    """
    return len(re.findall("Booting worker|Started server", server.log.read_text()))


RELOADS = {
    "gunicorn": (gunicorn("-k", "gthread", "--threads", "4", "-w", "2", "shop:app"), FLASK),
    "gunicorn gevent": (gunicorn("-k", "gevent", "-w", "2", "shop:app"), FLASK),
    "uvicorn": (("uvicorn", "shop:app", "--port", "PORT", "--reload"), FASTAPI),
}


@pytest.mark.parametrize(
    "kind", [kind if kind == "gunicorn" else pytest.param(kind, marks=pytest.mark.long) for kind in RELOADS]
)
def test_what_is_accepted_while_the_server_reloads_runs_once(serve, valkey, namespace, kind):
    words, program = RELOADS[kind]
    queue = Duly(valkey.url, namespace=namespace, drain_grace=1)
    runs: Counter[str] = Counter()

    @queue.handler("greet")
    async def greet(name: str) -> None:
        runs[name] += 1

    accepted: set[str] = set()
    numbers = itertools.count()
    over = threading.Event()

    def send(port: int) -> None:
        while not over.is_set():
            name = f"u{next(numbers)}"
            if status(port, f"/users/{name}") == 202:
                accepted.add(name)

    with serve(*words, shop=program) as server, ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(send, server.port)
        try:
            for turn in range(3):
                count = len(accepted)
                _until(lambda count=count: len(accepted) > count + 50, server.log)
                begun = begins(server)
                if kind == "uvicorn":
                    (server.log.parent / "shop.py").write_text(textwrap.dedent(program) + f"\n# {turn}\n")
                else:
                    server.send_signal(signal.SIGHUP)
                _until(lambda begun=begun: begins(server) > begun, server.log)
        finally:
            over.set()

    async def drain() -> None:
        stop = asyncio.Event()
        async with queue:
            working = asyncio.create_task(queue.work(stop=stop))
            views = await queue.views()
            async with asyncio.timeout(60):
                while (await views.page(JobState.ready, "greet", limit=1)).jobs or not accepted <= set(runs):
                    await asyncio.sleep(0.02)
            stop.set()
            await working

    asyncio.run(drain())
    assert accepted <= set(runs)
    assert {1} == set(runs.values())
