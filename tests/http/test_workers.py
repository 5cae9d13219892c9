"""
The example workers, in shell and JavaScript, as processes of their own against a real `duly serve`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from duly import Duly
from duly.job import JobState
from duly.newjob import new_job
from tests.eventually import eventually
from tests.tools import tool

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
KEY = "0123456789abcdef"
LONG = 60  # seconds: nothing takes that long, whatever else the machine does
SAFE_LEASE_S = 15  # no worker that lives is silent for that long
SHORT_LEASE_S = 6  # where a test waits for it, or for a third of it: an extension may be four seconds late

#: Both say that they started, wait until they may go on, and return what they were given.
SHELL = 'echo "$JOB_ID $JOB_ATTEMPT $QUEUE_WORKER" >>ledger; until [ -e go ]; do sleep 0.05; done; cat'
JAVASCRIPT = """
import { appendFileSync, existsSync } from "node:fs";
export default async function (payload, job, signal) {
  appendFileSync("ledger", `${job.id} ${job.attempt} ${process.env.QUEUE_WORKER}\\n`);
  while (!existsSync("go")) {
    if (signal.aborted) { appendFileSync("stopped", job.id); throw signal.reason; }
    await new Promise((wake) => setTimeout(wake, 50));
  }
  return payload;
}
"""


class Place:
    """
    A folder with a service, workers, and what they wrote down.
    """

    def __init__(self, folder: Path, url: str, namespace: str, shards: int) -> None:
        self.folder = folder
        self._environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "QUEUE_"))
        }
        self._queue = {
            "DULY_URL": url,
            "DULY_NAMESPACE": namespace,
            "DULY_SHARDS": str(shards),
            # Short: whoever finds a server that has just started holds back recovery for so long.
            "DULY_LEASE": "2s",
            "DULY_API_KEYS": f"tests:{KEY}:admin",
            "PYTHONPATH": str(ROOT / "src"),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "handler.mjs").write_text(JAVASCRIPT)

    async def serve(self) -> None:
        """
        Start the service.
        """
        self._start([sys.executable, "-m", "duly", "serve", "--port", "0"], self._queue, "serve.log")
        found = await eventually(
            lambda: re.search(r"serving on (\S+)", (self.folder / "serve.log").read_text()) or False, LONG
        )
        self.url = found[1]

    def work(self, language: str, name: str = "w1", lease_s: int = SAFE_LEASE_S) -> subprocess.Popen[bytes]:
        """
        Start a worker of the topic `wait`.
        """
        if language == "shell":
            tool("curl")
            command = [str(EXAMPLES / "worker-shell" / "worker.sh"), "wait", "sh", "-c", SHELL]
        else:
            command = [
                tool("node"),
                str(EXAMPLES / "worker-javascript" / "worker.mjs"),
                *("wait", "handler.mjs"),
            ]
        queue = {"QUEUE_URL": self.url, "QUEUE_KEY": KEY, "QUEUE_WORKER": name, "QUEUE_LEASE": str(lease_s)}
        return self._start(command, queue, f"{name}.log")

    def _start(self, command: list[str], environ: dict[str, str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self._environ | environ, stdout=output, stderr=output
            )
        self._processes.append(process)
        return process

    def read(self, name: str = "ledger") -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()}" for path in self.folder.glob("*.log"))

    def go(self) -> None:
        (self.folder / "go").touch()

    def close(self) -> None:
        # Commands of killed workers wait for it, too.
        self.go()
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(LONG)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()


@pytest.fixture
async def app(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as app:
        yield app


@pytest.fixture
async def place(valkey, namespace, shards, tmp_path, app):
    place = Place(tmp_path, valkey.url, namespace, shards)
    try:
        await place.serve()
        yield place
        print(place.logs())
    finally:
        await asyncio.to_thread(place.close)


languages = pytest.mark.parametrize("language", ["shell", "javascript"])


async def in_state(app, id_, state):
    job = await app.job("wait", id_).get()
    assert state == job.state, job
    return job


@languages
async def test_two_workers_share_and_each_job_is_done_once(place, app, language):
    place.go()
    place.work(language, "w1")
    place.work(language, "w2")
    ids = [f"{number:02}" for number in range(20)]
    for number, id_ in enumerate(ids):
        await app.enqueue("wait", {"number": number, "text": 'é " \\ \t %s $HOME'}, id=id_)
    for number, id_ in enumerate(ids):
        job = await eventually(lambda id_=id_: in_state(app, id_, JobState.succeeded), LONG)
        result = await app.job("wait", id_).result(timeout=LONG)
        assert (1, {"number": number, "text": 'é " \\ \t %s $HOME'}) == (job.attempts, result)
    assert [f"{id_} 1" for id_ in ids] == sorted(line.rpartition(" ")[0] for line in place.read())


@languages
async def test_a_killed_worker_loses_no_job(place, app, language):
    # Its lease is waited for.
    victim = place.work(language, "victim", lease_s=3)
    await app.enqueue("wait", 1, id="a")
    await eventually(lambda: ["a 1 victim"] == place.read(), LONG)
    victim.kill()
    # Its own child looks whether it lives; until somebody has waited for it, it seems to.
    victim.wait()
    place.work(language, "heir")
    await eventually(lambda: ["a 1 victim", "a 1 heir"] == place.read(), LONG)
    place.go()
    job = await eventually(lambda: in_state(app, "a", JobState.succeeded), LONG)
    assert 1 == job.attempts
    # A service that could not look for seconds is in doubt whose fault it was, says so, and may not count.
    held_back = any("holding back recovery" in line for line in place.read("serve.log"))
    assert job.crashes == 1 or (held_back and job.crashes == 0)


@languages
async def test_a_job_may_take_longer_than_its_lease(place, app, language):
    place.work(language, lease_s=SHORT_LEASE_S)
    await app.enqueue("wait", 1, id="a")
    await eventually(lambda: ["a 1 w1"] == place.read(), LONG)
    job = await app.job("wait", "a").get()

    async def outlived():
        now = await app.job("wait", "a").get()
        # The lease it began with is over, and it is still the same run.
        assert now.lease_ms > job.started_ms + 2_000 * SHORT_LEASE_S
        return now

    now = await eventually(outlived, LONG)
    place.go()
    job = await eventually(lambda: in_state(app, "a", JobState.succeeded), LONG)
    assert (1, 0, now.started_ms) == (job.attempts, job.crashes, job.started_ms)


@languages
async def test_a_cancelled_job_is_stopped(place, app, language):
    # It hears of it when it extends its lease.
    place.work(language, lease_s=SHORT_LEASE_S)
    await app.enqueue("wait", 1, id="a")
    await eventually(lambda: ["a 1 w1"] == place.read(), LONG)
    await app.job("wait", "a").cancel()
    # It takes the next one only when the first has stopped; the two cannot go on before.
    await app.enqueue("wait", 1, id="b")
    await eventually(lambda: ["a 1 w1", "b 1 w1"] == place.read(), LONG)
    assert JobState.cancelled == (await app.job("wait", "a").get()).state


async def test_a_shell_worker_that_is_told_to_end_gives_its_job_back(place, app):
    worker = place.work("shell")
    await app.enqueue("wait", 1, id="a")
    await eventually(lambda: ["a 1 w1"] == place.read(), LONG)
    worker.terminate()
    assert 0 == await asyncio.to_thread(worker.wait, LONG)
    job = await in_state(app, "a", JobState.ready)
    assert (0, 0) == (job.attempts, job.crashes)


async def test_a_javascript_worker_that_is_told_to_end_finishes_its_job(place, app):
    worker = place.work("javascript")
    await app.enqueue("wait", 1, id="a")
    await eventually(lambda: ["a 1 w1"] == place.read(), LONG)
    worker.terminate()
    await app.enqueue("wait", 1, id="b")
    place.go()
    assert 0 == await asyncio.to_thread(worker.wait, LONG)
    await in_state(app, "a", JobState.succeeded)
    await in_state(app, "b", JobState.ready)


@languages
async def test_an_idle_worker_that_is_told_to_end_takes_no_job_along(place, app, language):
    worker = place.work(language)
    views = await app.views()

    async def listed():
        return "w1" in [each["worker"] for each in await views.workers(await views.now_ms())]

    await eventually(listed, LONG)
    worker.terminate()
    assert 0 == await asyncio.to_thread(worker.wait, LONG)
    await app.enqueue("wait", 1, id="a")
    async with httpx.AsyncClient(base_url=place.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        response = await client.post(
            "/v1/topics/wait/claim", json={"worker": "w2", "wait": LONG}, timeout=LONG
        )
        [job] = response.json()["jobs"]
        assert ("a", 1, 0) == (job["id"], job["attempt"], job["crashes"])


async def test_a_hundred_claims_at_once_are_all_served(place, app):
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        base_url=place.url, headers=headers, limits=limits, timeout=2 * LONG
    ) as client:

        async def work(number):
            body = {"worker": f"w{number}", "wait": LONG}
            [job] = (await client.post("/v1/topics/wait/claim", json=body)).json()["jobs"]
            assert 200 == (await client.post(f"/v1/leases/{job['token']}/ack")).status_code
            return job["id"]

        working = [asyncio.create_task(work(number)) for number in range(100)]
        await app.enqueue_many([app_job(app, number) for number in range(100)])
        assert sorted(map(str, range(100))) == sorted(await asyncio.gather(*working))
    counts = (await (await app.views()).stats()).topics[0].counts
    assert 100 == counts["succeeded"]


def app_job(app, number):
    return new_job("wait", number, app.settings.limits).options(id=str(number))
