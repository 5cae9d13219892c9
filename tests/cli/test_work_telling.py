"""
What `duly work` tells of itself: metrics over HTTP, and log lines for people or programs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from duly.job import shard_of

APP = """
import logging
from duly import Duly

app = Duly()
log = logging.getLogger("shop")


@app.handler("greet", max_attempts=1)
async def greet(name: str) -> str:
    log.info("greeting", extra={"guests": 3})
    if name == "s3cr3t":
        raise ValueError("no such guest")
    return name
"""


@pytest.fixture
def work(tmp_path, valkey, namespace, shards):
    (tmp_path / "shop.py").write_text(APP)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    environ = clean | {"DULY_URL": valkey.url, "DULY_NAMESPACE": namespace, "DULY_SHARDS": str(shards)}
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, before: str = "") -> tuple[subprocess.Popen[bytes], object]:
        path = tmp_path / f"log{len(started)}"
        code = f"{before}\nimport sys\nfrom duly.cli.main import main\nsys.exit(main())"
        with path.open("w") as output:
            worker = subprocess.Popen(
                [sys.executable, "-c", code, "work", "shop:app", *options],
                cwd=tmp_path,
                env=environ,
                stdout=output,
                stderr=output,
            )
        started.append(worker)
        return worker, path

    yield start
    for worker in started:
        worker.kill()
        worker.wait()


def until(check, path):
    deadline = time.monotonic() + 60
    while not (found := check()):
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.02)
    return found


@pytest.fixture
def sender(valkey, namespace):
    from duly import Duly

    app = Duly(valkey.url, namespace=namespace)
    yield app.sync
    app.sync.close()


def test_metrics_are_exposed_on_a_port_of_this_machine(work, sender):
    worker, log = work("--metrics-port", "0")
    [url] = until(lambda: re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", log.read_text()), log)
    sender.enqueue("greet", "Ada").result(timeout=60)

    def acked() -> bool:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  # http, as matched above
            text = answer.read().decode()
        return 'duly_verbs_total{topic="greet",verb="acked"} 1.0' in text and "duly_store_up 1.0" in text

    until(acked, log)
    rebound = urllib.request.Request(url, headers={"Host": "evil.example:9400"})  # noqa: S310  # as above
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(rebound, timeout=60)  # noqa: S310  # as above
    worker.send_signal(signal.SIGTERM)
    assert 0 == worker.wait(60), log.read_text()


def test_a_port_that_is_taken_is_a_sentence(work):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        worker, log = work("--metrics-port", str(port))
        assert 2 == worker.wait(60)
    assert (
        f"duly: cannot expose metrics: port {port} of 127.0.0.1 is taken; choose another one, or 0 for any\n"
        == log.read_text()
    )


def test_an_address_that_is_none_is_a_sentence(work):
    worker, log = work("--metrics-port", "0", "--metrics-host", "203.0.113.1")
    assert 2 == worker.wait(60)
    assert log.read_text().startswith("duly: cannot expose metrics at 203.0.113.1, port 0: ")
    assert 1 == len(log.read_text().splitlines())


def test_without_the_extra_a_sentence_says_how_to_get_it(work):
    worker, log = work(
        "--metrics-port", "0", before="import sys; sys.modules['prometheus_client'] = None  # not installed"
    )
    assert 2 == worker.wait(60)
    assert (
        "duly: --metrics-port needs prometheus-client, which is not installed: pip install 'duly[metrics]'\n"
        == log.read_text()
    )


def test_log_lines_for_programs_say_which_job_they_are_about(work, sender, shards):
    worker, log = work("--log-format", "json")
    until(lambda: "working on greet" in log.read_text(), log)
    sender.enqueue("greet", "Ada", id="a").result(timeout=60)
    sender.enqueue("greet", "s3cr3t", id="b", context={"key": "s3cr3t"})
    until(lambda: "greet/b, attempt 1: dead" in log.read_text(), log)
    worker.send_signal(signal.SIGTERM)
    assert 0 == worker.wait(60)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    told = next(line for line in lines if line["message"] == "greeting")
    assert ("shop", "greet", "a", 1, 3) == tuple(
        told[name] for name in ("logger", "topic", "id", "attempt", "guests")
    )
    buried = next(line for line in lines if line["message"].startswith("greet/b, "))
    assert buried["message"].startswith("greet/b, attempt 1: dead: ValueError at shop.py:")
    assert buried["message"].endswith(": no such guest")
    assert ("ERROR", "greet", "b", 1, shard_of("greet", "b", shards)) == tuple(
        buried[name] for name in ("level", "topic", "id", "attempt", "shard")
    )
    assert buried["token"]
    assert buried["worker"]
    assert "s3cr3t" not in log.read_text()
