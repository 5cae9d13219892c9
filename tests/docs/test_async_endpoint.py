"""
The async-endpoint example: an app, workers that come and go, and callers, each a process of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from duly import Duly, JobState
from tests.docs.pages import ROOT, blocks
from tests.docs.walks import Shell, environ, shows, steps
from tests.ports import held_port
from tests.servers import Server, binary
from tests.testing.projects import install

EXAMPLE = ROOT / "examples" / "async-endpoint"
ID = "X-Async-Request-Id"


class Shop:
    """
    The example in a folder of its own, with its processes.
    """

    def __init__(self, folder: Path, port: int, installed: Path, server: Server) -> None:
        shutil.copy(EXAMPLE / "shop.py", folder)
        self.folder, self.port = folder, port
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        # A short lease, so that the jobs of a killed worker come back soon.
        self._environ = clean | environ(installed)
        self._environ |= {"DULY_URL": server.url, "DULY_LEASE": "3s", "PYTHONUNBUFFERED": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.queue = Duly(server.url)

    def start(self, *command: str, until: str, **more: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self._processes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.folder,
                env=self._environ | more,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self._processes.append(process)
        deadline = time.monotonic() + 60
        while until not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        return process

    def serve(self) -> None:
        self.start("uvicorn", "shop:api", "--port", str(self.port), until="Uvicorn running on")

    def work(self, **more: str) -> subprocess.Popen[bytes]:
        return self.start("duly", "work", "shop:queue", until="working on order.refund", **more)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def shop(tmp_path):
    server = Server(binary("valkey")).start()
    with (
        tempfile.TemporaryDirectory(prefix="duly-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        held_port() as port,
    ):
        shop = Shop(Path(folder), port, install(tmp_path / "installed"), server)
        try:
            shop.serve()
            yield shop
        finally:
            shop.close()
            server.stop()


@pytest.fixture
def client(shop):
    with httpx.Client(base_url=f"http://127.0.0.1:{shop.port}", timeout=60) as client:
        yield client


def test_the_example_does_what_its_readme_says(shop, tmp_path):
    if shutil.which("curl") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no curl here: apt-get install curl")
    shop.work(BANK_S="0.1")
    shell = Shell(shop.folder)
    typed = 0
    try:
        for block in blocks(EXAMPLE / "README.md"):
            if block.mark.startswith("typed"):
                for command, shown in steps(block.text):
                    code, printed = shell.type(command.replace("localhost:8000", f"127.0.0.1:{shop.port}"))
                    assert 0 == code
                    assert shows(shown, printed), f"{block}: {command}\nprinted\n{printed}"
                    typed += 1
    finally:
        shell.close()
    assert 7 == typed


def test_a_request_outlives_the_worker_that_began_it(shop, client):
    first = shop.work(BANK_S="600")
    sent = {"json": {"amount": 1900}, "headers": {ID: "refund-1"}}
    accepted = client.post("/orders/o-7/refund", **sent)
    assert 202 == accepted.status_code, accepted.text
    place = accepted.headers["location"]
    deadline = time.monotonic() + 60
    while (seen := client.get(place).json())["progress"] is None:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
    assert ("running", 300, "sent to the bank") == (seen["state"], seen["state_code"], seen["progress"])
    assert 409 == client.get(place + "/result").status_code

    first.send_signal(signal.SIGKILL)
    assert -signal.SIGKILL == first.wait()
    shop.work(BANK_S="0.1")
    while (seen := client.get(place, params={"wait": 10}).json())["state"] != "succeeded":
        assert time.monotonic() < deadline, seen
    assert (400, {"order": "o-7", "refunded": 1900}) == (seen["state_code"], seen["result"])
    assert {"order": "o-7", "refunded": 1900} == client.get(place + "/result").json()

    again = client.post("/orders/o-7/refund", **sent)
    assert (202, "refund-1", "succeeded") == (again.status_code, again.json()["id"], again.json()["state"])
    assert 422 == client.post("/orders/o-7/refund", json={"amount": 1}, headers={ID: "refund-1"}).status_code
    with shop.queue.sync as queue:
        jobs = [job.id for state in JobState for job in queue.views().each(state)]
    assert ["refund-1"] == jobs


def test_the_validator_stops_a_bad_request_before_it_is_a_job(shop, client):
    refused = client.post("/orders/o-8/refund", json={"amount": 1900}, headers={ID: "refund-1"})
    assert (409, {"detail": "only 1200 were paid"}) == (refused.status_code, refused.json())
    assert 404 == client.post("/orders/o-9/refund", json={"amount": 1900}).status_code
    assert 422 == client.post("/orders/o-8/refund", json={"amount": 0}).status_code
    assert 404 == client.get("/orders/o-8/refund/refund-1").status_code
    assert 202 == client.post("/orders/o-8/refund", json={"amount": 1200}).status_code


def test_the_app_describes_its_endpoint(shop, client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {"post"} == set(paths["/orders/{order_id}/refund"])
    assert {"get", "delete"} == set(paths["/orders/{order_id}/refund/{job_id}"])
    assert {"get"} == set(paths["/orders/{order_id}/refund/{job_id}/result"])
