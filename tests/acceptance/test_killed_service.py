"""
The HTTP service killed while clients send: what it answered for runs, what is sent again is no second job.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import httpx
import pytest

from duly.job import JobKey, JobState
from tests.acceptance.harness import ROOT, result_of, until

JOBS = "/v1/topics/loop/jobs"
SENDERS = 16
KILLS = 5


class Service:
    """
    `duly serve` on one port, started again after each kill.
    """

    def __init__(self, rig) -> None:
        self._rig = rig
        self._numbers = itertools.count(1)
        self._port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        log = self._rig.dir / f"service-{next(self._numbers)}.log"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        environ |= {"DULY_URL": self._rig.server.url, "PYTHONPATH": str(ROOT / "src")}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "duly", "serve", "--port", str(self._port)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        await until(lambda: "serving on" in log.read_text() or not self.alive, 60, "the service starts")
        found = re.search(r"serving on http://127.0.0.1:(\d+)", log.read_text())
        assert found, log.read_text()
        self._port = int(found[1])

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.alive:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture
async def start_service():
    started = []

    async def start(rig):
        started.append(Service(rig))
        await started[-1].start()
        return started[-1]

    yield start
    for service in started:
        service.kill()


class Senders:
    """
    Clients that send numbered jobs: even numbers once, odd ones with a key and again until they are answered.
    """

    def __init__(self, service: Service, count: int) -> None:
        self._service = service
        self._left = iter(range(count))
        self.answered: dict[int, str] = {}  #: which job, by number
        self.lost: Counter[int] = Counter()  #: requests that were sent and not answered

    async def send(self) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            for number in self._left:
                await self._send_one(client, number)

    async def _send_one(self, client: httpx.AsyncClient, number: int) -> None:
        headers = {"Idempotency-Key": f"order {number}"} if number % 2 else {}
        while True:
            try:
                response = await client.post(
                    self._service.url + JOBS, json={"payload": {"version": number}}, headers=headers
                )
            except httpx.ConnectError:
                await asyncio.sleep(0.01)  # not sent: the service is just starting
                continue
            except httpx.TransportError:
                self.lost[number] += 1
                if not headers:
                    return
                continue
            assert 202 == response.status_code, response.text
            self.answered[number] = response.headers["location"].removeprefix(f"{JOBS}/")
            return


async def test_what_a_killed_service_answered_for_runs_once_and_a_key_makes_one_job(
    start_rig, start_service, request
):
    size = 2_000 if request.config.getoption("--long") else 400
    rig = await start_rig(lease="15s")
    await rig.start_workers(1)
    service = await start_service(rig)
    senders = Senders(service, size)
    sending = asyncio.gather(*(senders.send() for _ in range(SENDERS)))
    for kill in range(1, KILLS + 1):
        enough = size * kill // (KILLS + 2)
        await until(lambda enough=enough: len(senders.answered) >= enough, 60, f"{enough} answers")
        service.kill()
        await service.start()
    await sending
    await rig.all_ended(within_s=120)
    print(f"{senders.lost.total()} of {size} requests were not answered")
    assert any(number % 2 for number in senders.lost), "no kill met a request with a key: this showed nothing"

    with_key = {number: id_ for number, id_ in senders.answered.items() if number % 2}
    assert size // 2 == len(with_key) == len(set(with_key.values()))
    assert len(senders.answered) == len(set(senders.answered.values()))
    expected = {JobKey("loop", id_): {JobState.succeeded} for id_ in senders.answered.values()}
    jobs = await rig.check_each_ended_once(expected)
    for number, id_ in senders.answered.items():
        assert number == result_of(jobs[JobKey("loop", id_)])["version"]

    # By what the handlers wrote down: each ran once, and nothing ran for a key but the job that was answered.
    runs = Counter(line.id for line in rig.ledger.read("started"))
    assert {1} == set(runs.values())
    answered = set(senders.answered.values())
    assert answered <= runs.keys()
    others = await rig.jobs([JobKey("loop", id_) for id_ in runs.keys() - answered])
    numbers = [result_of(job)["version"] for job in others]
    assert [] == [number for number in numbers if number % 2], "a key made a second job"
    assert len(numbers) == len(set(numbers) & senders.lost.keys()), "a job came from nowhere"


async def test_a_request_that_was_stored_but_not_answered_makes_no_second_job(start_rig, start_service):
    rig = await start_rig()
    service = await start_service(rig)
    body = {"payload": {"version": 1}, "delay": 3600}
    sent = {"json": body, "headers": {"Idempotency-Key": "order 1"}}

    async def first_try() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            # It waits for the end of a job that is due in an hour, so the answer is still to come.
            headers = sent["headers"] | {"Prefer": "wait=60"}
            await client.post(service.url + JOBS, json=body, headers=headers)

    trying = asyncio.create_task(first_try())
    async with asyncio.timeout(60):
        while not (await rig.counts())["scheduled"]:
            await asyncio.sleep(0.01)
    service.kill()
    with pytest.raises(httpx.TransportError):
        await trying
    await service.start()
    async with httpx.AsyncClient(timeout=60) as client:
        again = [await client.post(service.url + JOBS, **sent) for _ in range(2)]
        assert [202, 202] == [answer.status_code for answer in again]
        assert 1 == len({answer.headers["location"] for answer in again})
        other = await client.post(
            service.url + JOBS, json={"payload": {"version": 2}}, headers=sent["headers"]
        )
        assert 422 == other.status_code
    assert 1 == (await rig.counts()).total()
