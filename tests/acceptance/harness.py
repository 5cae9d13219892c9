"""
Real processes for acceptance tests: servers, workers, a ledger outside the store, and what must be true.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from duly import Duly
from duly.events import Verb
from duly.feed import Feed
from duly.job import JobKey, JobState
from duly.namespace import inspect
from tests.servers import Server, binary

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.events import Event
    from duly.job import Job

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENDINGS = {Verb.acked: JobState.succeeded, Verb.buried: JobState.dead, Verb.cancelled: JobState.cancelled}


def seeded() -> random.Random:
    """
    Chance that can be repeated: the seed is printed with a failure.
    """
    seed = int(os.environ.get("ACCEPTANCE_SEED") or random.randrange(2**32))
    print(f"ACCEPTANCE_SEED={seed}")
    return random.Random(seed)


@dataclass(frozen=True, slots=True)
class Line:
    """
    What a handler wrote down.
    """

    word: str
    topic: str
    id: str
    revision: int
    attempt: int
    token: str
    due_ms: int
    at_ms: int
    pid: int

    @property
    def late_ms(self) -> int:
        return self.at_ms - self.due_ms

    @classmethod
    def of(cls, text: str) -> Line:
        word, topic, id_, revision, attempt, token, due_ms, at_ms, pid = text.split(" ")
        return cls(word, topic, id_, int(revision), int(attempt), token, int(due_ms), int(at_ms), int(pid))


class Ledger:
    """
    An append-only file that the handlers write to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read(self, word: str = "") -> list[Line]:
        # Behind the last line break is a line that somebody is just writing.
        lines = [Line.of(text) for text in self.path.read_text().split("\n")[:-1]]
        return [line for line in lines if line.word == word] if word else lines

    async def wait_for(self, word: str, count: int = 1, *, within_s: float = 20) -> list[Line]:
        what = f"{count} times {word!r} in the ledger"
        try:
            await until(lambda: len(self.read(word)) >= count, within_s, what)
        except AssertionError as error:
            raise AssertionError(f"{error}, but {len(self.read(word))}") from None
        return self.read(word)


async def until(true: Callable[[], Any], within_s: float, what: str) -> None:
    """
    Wait, for a bounded time, until something is true.
    """
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s} s")
        await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    """
    Whether a process has ended, be it that nobody has waited for it yet.
    """
    command = Path("/proc", str(pid), "cmdline")
    return not command.exists() or not command.read_bytes()


class WorkerProcess:
    """
    One `duly work` with a log of its own.
    """

    def __init__(self, log: Path, environ: dict[str, str], flags: tuple[str, ...]) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "duly", "work", "tests_app:app", *flags],
                env=environ,
                cwd=HERE,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # so that a test can signal it with its children, as a terminal does
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.alive:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    async def exit_code(self, within_s: float = 30) -> int:
        try:
            await until(lambda: not self.alive, within_s, f"worker {self.pid} ends")
        except AssertionError as error:
            self.send(signal.SIGUSR1)
            await asyncio.sleep(0.5)
            raise AssertionError(f"{error}\n{self.said()[-6000:]}") from None
        return self.process.returncode

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    async def wait_until_working(self, within_s: float = 20) -> WorkerProcess:
        what = f"worker {self.pid} works"
        await until(lambda: "working on" in self.said() or not self.alive, within_s, what)
        assert self.alive, self.said()
        return self


@dataclass
class Rig:
    """
    A server, an app that sends to it, workers, and their ledger.
    """

    server: Server
    settings: dict[str, str] = field(default_factory=dict)
    workers: list[WorkerProcess] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="duly-acceptance-"))
        self.ledger = Ledger(self.dir / "ledger")
        self.app = Duly(
            self.url or self.server.url,
            lease=self.settings.get("lease", "1s"),
            record=self.settings.get("record"),
        )
        self._numbers = iter(range(1, 10_000))

    @classmethod
    async def start(cls, *config: str, appendfsync: str = "everysec", **settings: str) -> Rig:
        server = Server(binary("valkey"), *config, appendfsync=appendfsync).start()
        rig = cls(server, {"lease": "1s", "recover_scan": "200ms", "drain_grace": "10s"} | settings)
        try:
            # Pruning events waits for a registered consumer: in the end all of them are read.
            await Feed(await rig.app.store()).commit("acceptance", 0, None)
        except BaseException:
            await rig.close()
            raise
        return rig

    async def age(self, s: int = 3) -> None:
        """
        Let the server become old enough for crashes to count: right after its start none do.
        """
        store = await self.app.store()
        while (await inspect(store.link)).uptime_s < s:
            await asyncio.sleep(0.1)

    def start_worker(self, *flags: str, url: str = "", **settings: str) -> WorkerProcess:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        environ |= {f"DULY_{name.upper()}": value for name, value in (self.settings | settings).items()}
        environ["DULY_URL"] = url or self.url or self.server.url
        environ["LEDGER"] = str(self.ledger.path)
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(HERE)])
        worker = WorkerProcess(self.dir / f"worker-{next(self._numbers)}.log", environ, flags)
        self.workers.append(worker)
        return worker

    async def start_workers(self, count: int, *flags: str, **settings: str) -> list[WorkerProcess]:
        started = [self.start_worker(*flags, **settings) for _ in range(count)]
        for worker in started:
            await worker.wait_until_working()
        return started

    @property
    def live_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    async def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        await self.app.aclose()
        self.server.stop()
        if not os.environ.get("ACCEPTANCE_KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)

    # -- what the store says ------------------------------------------------------------------------------

    async def counts(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for topic in (await (await self.app.views()).stats()).topics:
            total.update(topic.counts)
        return total

    async def all_ended(self, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while True:
            counts = await self.counts()
            waiting = {state: counts[state] for state in ("scheduled", "ready", "running")}
            if not any(waiting.values()):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {worker.pid}\n{worker.said()[-1500:]}" for worker in self.workers[-4:])
                raise AssertionError(f"not ended within {within_s} s: {waiting}\n{logs}")
            await asyncio.sleep(0.05)

    async def jobs(self, keys: list[JobKey]) -> list[Job]:
        found = await (await self.app.views()).get_many(keys)
        missing = [key for key, job in zip(keys, found, strict=True) if job is None]
        assert [] == missing, "lost"
        return found

    async def events(self) -> list[Event]:
        feed, offset, events = Feed(await self.app.store()), None, []
        while True:
            offset, more = await feed.read(0, offset, limit=500)
            if not more:
                return events
            events += more

    async def timers(self) -> list[WorkerProcess]:
        """
        The live workers that hold timer slots, by rank; a worker's name holds its process id.
        """
        store = await self.app.store()
        slots = await store.link.call(
            "HMGET", store.keys[0].fixed["meta"], *(f"timer.{slot}" for slot in range(3))
        )
        pids = [int(held.decode().split(" ")[0].rsplit("-", 2)[1]) for held in slots if held]
        live = {worker.pid: worker for worker in self.live_workers}
        return [live[pid] for pid in dict.fromkeys(pids) if pid in live]

    async def check_each_ended_once(self, expected: dict[JobKey, set[JobState]]) -> dict[JobKey, Job]:
        """
        Compare the store's final states, its events and the ledger: none lost, none early, none ended twice.
        """
        jobs = dict(zip(expected, await self.jobs(list(expected)), strict=True))
        wrong = {str(key): job.state.name for key, job in jobs.items() if job.state not in expected[key]}
        assert {} == wrong

        lines = self.ledger.read()
        assert [] == [line for line in lines if line.late_ms < 0], "started early"

        endings = Counter(
            (event.topic, event.id, event.revision, ENDINGS[event.verb])
            for event in await self.events()
            if event.verb in ENDINGS
        )
        assert [] == [ending for ending, times in endings.items() if times > 1], "ended twice"
        per_revision = Counter(ending[:3] for ending in endings)
        assert [] == [revision for revision, kinds in per_revision.items() if kinds > 1], "ended in two ways"
        for key, job in jobs.items():
            assert 1 == endings[key.topic, key.id, job.revision, job.state], f"{key} has no end in the events"

        # The run that counts is one that finished: its token came with the result.
        finished = {(line.topic, line.id, line.token) for line in lines if line.word == "finished"}
        for key, job in jobs.items():
            if job.state is JobState.succeeded:
                assert (key.topic, key.id, result_of(job)["token"]) in finished, f"{key} succeeded unrun"
        tokens = Counter(line.token for line in lines if line.word == "started")
        assert 1 == max(tokens.values()), "a token ran twice"
        return jobs


def result_of(job: Job) -> Any:
    return msgspec.json.decode(job.outcome)
