"""
What is measured.  Each measure begins with an empty server and gives some figures, by name.
"""

from __future__ import annotations

import random
import shutil
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.peers import processes
from bench.peers.agent import WARM_UP
from bench.peers.arithmetic import Run, between, late_figures, window
from bench.peers.contract import RECORD
from bench.peers.processes import Failed, ended, running, tail
from bench.peers.server import server, url

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.peers.environments import Environment
    from bench.peers.server import Server

PATIENCE_S = 60.0  #: for a process to start or to end what it does


@dataclass(frozen=True)
class Sizes:
    """
    How much of it.
    """

    bulk: int = 50_000
    one_by_one: int = 10_000
    jobs: int = 100_000  #: to be processed, at most
    seconds: float = 10.0  #: of processing, at most twice as long; and of jobs that fall due
    rate: int = 1_000
    sparse_rate: int = 5
    sparse_seconds: float = 20.0
    waiting: int = 50_000
    idle_seconds: float = 15.0
    patience_s: float = 75.0  #: for jobs that are overdue


QUICK = Sizes(
    bulk=5_000,
    one_by_one=1_000,
    jobs=20_000,
    seconds=2.0,
    sparse_seconds=4.0,
    waiting=5_000,
    idle_seconds=3.0,
    patience_s=8.0,
)


class Subject:
    """
    One system with one profile, on servers that take turns on one port.
    """

    def __init__(self, environment: Environment, profile: str, port: int, folder: Path) -> None:
        self.port = port
        self.folder = folder
        self.pace = 0.0  #: jobs a second of one worker, once that is known
        self.benches = 0
        self._environment = environment
        self._profile = profile
        folder.mkdir(parents=True)
        with self.agent("describe", folder) as one:
            self.about = one.hear(PATIENCE_S)

    def variables(self, folder: Path, worker: int = 0) -> dict[str, str]:
        """
        What a process of this system finds in its environment.
        """
        return self._environment.variables | {
            "PEERS_URL": url(self.port),
            "PEERS_PROFILE": self._profile,
            "PEERS_LEDGER": str(folder / "ledger"),
            "PEERS_WORKER": str(worker),
        }

    @contextmanager
    def agent(self, verb: str, folder: Path) -> Iterator[processes.Agent]:
        """
        A producer meanwhile.
        """
        command = (*self._environment.agent, verb)
        with processes.agent(command, self.variables(folder), folder / "agent.log") as one:
            yield one

    @contextmanager
    def bench(self) -> Iterator[Bench]:
        """
        A new server and an empty ledger.
        """
        self.benches += 1
        folder = self.folder / str(self.benches)
        try:
            with server(self.port, folder) as one:
                yield Bench(self, one, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # hundreds of append-only files would fill a disk


class Bench:
    """
    A server, a ledger, and what is started for one measure.
    """

    def __init__(self, subject: Subject, one: Server, folder: Path) -> None:
        self.subject = subject
        self.server = one
        self._folder = folder
        self._ledger = folder / "ledger"
        self._ledger.touch()
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def send(
        self, verb: str, size: object, patience_s: float = 10 * PATIENCE_S
    ) -> tuple[dict[str, Any], float]:
        """
        Let an agent send, and tell what it says and how many seconds of processor time that cost the server.
        """
        with self.subject.agent(verb, self._folder) as one:
            one.hear(PATIENCE_S)
            before = self.server.cpu_s()
            answer = one.go(size, patience_s)
            return answer, self.server.cpu_s() - before

    @contextmanager
    def workers(self, count: int) -> Iterator[None]:
        """
        So many workers, and what belongs beside them.
        """
        commands = self.subject.about["commands"]
        with ExitStack() as stack:
            if commands["beside"]:
                self._start(stack, commands["beside"], "beside", 0)
            for worker in range(count):
                self._start(stack, commands["worker"], f"worker-{worker}", worker)
            yield
        self._started.clear()

    def _start(self, stack: ExitStack, command: list[str], name: str, worker: int) -> None:
        words = [word.replace("{worker}", str(worker)) for word in command]
        variables, log = self.subject.variables(self._folder, worker), self._folder / f"{name}.log"
        self._started[name] = stack.enter_context(running(words, variables, log))

    def check(self) -> None:
        """
        Make sure that what was started still runs, and without errors: jobs that fail are quick.
        """
        for name, process in self._started.items():
            log = self._folder / f"{name}.log"
            if ended(process):
                raise Failed(f"{name} ended by itself{tail(log)}")
            if "Traceback" in tail(log):
                raise Failed(f"{name} logged errors{tail(log)}")

    def runs(self) -> list[Run]:
        """
        What has run, those left out that only warm something up.
        """
        return [run for run in (Run(*record) for record in RECORD.iter_unpack(self._whole())) if run.n >= 0]

    def _whole(self) -> bytes:
        text = self._ledger.read_bytes()
        return text[: len(text) // RECORD.size * RECORD.size]

    def ran(self) -> int:
        """
        How many runs the ledger has, whatever they were for.
        """
        return self._ledger.stat().st_size // RECORD.size

    def ready(self) -> None:
        """
        Wait until a worker has run a job, so that all of it is up.
        """
        self.send("single", 0)
        deadline = time.monotonic() + PATIENCE_S
        while not self.ran():
            self.check()
            if time.monotonic() > deadline:
                raise Failed(f"the worker runs nothing{tail(self._folder / 'worker-0.log')}")
            time.sleep(0.02)


Figures = dict[str, float]


def bulk(subject: Subject, sizes: Sizes) -> Figures:
    """
    Send many jobs at once.
    """
    with subject.bench() as bench:
        answer, cpu_s = bench.send("bulk", sizes.bulk)
    return {"bulk": sizes.bulk / answer["took_s"], "bulk_cpu": 1e6 * cpu_s / sizes.bulk}


def single(subject: Subject, sizes: Sizes) -> Figures:
    """
    Send one job after another.
    """
    with subject.bench() as bench:
        answer, cpu_s = bench.send("single", sizes.one_by_one)
    return {"single": sizes.one_by_one / answer["took_s"], "single_cpu": 1e6 * cpu_s / sizes.one_by_one}


def process_1(subject: Subject, sizes: Sizes) -> Figures:
    """
    Run a backlog with one worker.
    """
    rate, cpu = _process(subject, sizes, 1)
    return {"process_1": rate, "process_cpu": cpu}


def process_2(subject: Subject, sizes: Sizes) -> Figures:
    """
    Run a backlog with two workers.
    """
    return {"process_2": _process(subject, sizes, 2)[0]}


def _process(subject: Subject, sizes: Sizes, workers: int) -> tuple[float, float]:
    if not subject.pace:
        subject.pace = _drain(subject, min(2_000, sizes.jobs), 1, sizes.seconds)[0]
    # As many as keep the workers busy for some seconds: a slow system is not given more than it can run.
    count = max(min(sizes.jobs, round(subject.pace * workers * sizes.seconds)), min(500, sizes.jobs))
    return _drain(subject, count, workers, sizes.seconds)


def _drain(subject: Subject, count: int, workers: int, seconds: float) -> tuple[float, float]:
    """
    Jobs a second, and microseconds of the server's time for each of them.
    """
    with subject.bench() as bench:
        bench.send("preload", count)
        samples: list[tuple[float, float]] = []
        with bench.workers(workers):
            deadline = time.monotonic() + PATIENCE_S
            begun = False
            while (ran := bench.ran()) < count and time.monotonic() < deadline:
                if ran and not begun:
                    begun, deadline = True, time.monotonic() + 2 * seconds
                samples.append((time.time(), bench.server.cpu_s()))
                bench.check()
                time.sleep(0.05)  # looking costs the server time, too
            samples.append((time.time(), bench.server.cpu_s()))
        try:
            steady = window(bench.runs())
        except ValueError as error:
            raise Failed(str(error)) from error
    cpu_s = between(samples, steady.end_s) - between(samples, steady.begin_s)
    return steady.rate, 1e6 * cpu_s / steady.jobs


def late(subject: Subject, sizes: Sizes) -> Figures:
    """
    How late jobs start at a thousand a second.
    """
    return _late(subject, sizes, "late", sizes.rate, sizes.seconds)


def sparse(subject: Subject, sizes: Sizes) -> Figures:
    """
    How late jobs start when hardly anything happens.
    """
    return _late(subject, sizes, "sparse", sizes.sparse_rate, sizes.sparse_seconds)


def _late(subject: Subject, sizes: Sizes, name: str, rate: int, seconds: float) -> Figures:
    # Spread over the milliseconds at random, as real due times are, and the same for every system.
    spread = random.Random(1)  # reproducible, not secret
    offsets_ms = sorted(int(spread.random() * 1000 * seconds) for _ in range(round(rate * seconds)))
    with subject.bench() as bench, bench.workers(1):
        bench.ready()
        answer, _ = bench.send("schedule", offsets_ms)
        if answer["spare_ms"] < 0:
            raise Failed(f"scheduling took {-answer['spare_ms']:.0f} ms longer than planned")
        due_ms = {n: answer["start_ms"] + offset for n, offset in enumerate(offsets_ms)}
        deadline_s = (answer["start_ms"] + offsets_ms[-1]) / 1000 + sizes.patience_s
        wanted = len(offsets_ms) + WARM_UP
        while bench.ran() < wanted and time.time() < deadline_s:
            bench.check()
            time.sleep(0.05)
        return late_figures(name, due_ms, bench.runs(), time.time())


def memory(subject: Subject, sizes: Sizes) -> Figures:
    """
    What a waiting job costs the server in memory, while a worker runs, which in some systems moves such jobs.
    """
    with subject.bench() as bench, bench.workers(1):
        bench.ready()
        bench.send("wait", 1)  # scripts and whatever there is only once
        before = _settled(bench)
        bench.send("wait", sizes.waiting)
        return {"memory": (_settled(bench) - before) / sizes.waiting}


def _settled(bench: Bench) -> int:
    """
    The memory once it hardly changes within two seconds: workers move jobs, and the server counts buffers of
    clients once a second.
    """
    deadline = time.monotonic() + PATIENCE_S
    seen = bench.server.memory()
    while time.monotonic() < deadline:
        time.sleep(2)
        bench.check()
        now = bench.server.memory()
        if abs(now - seen) <= 4_096 + 0.001 * seen:
            return now
        seen = now
    return seen


def idle(subject: Subject, sizes: Sizes) -> Figures:
    """
    What a worker without work asks of the server.
    """
    with subject.bench() as bench, bench.workers(1):
        bench.ready()
        time.sleep(2)
        before, began = bench.server.commands(), time.monotonic()
        time.sleep(sizes.idle_seconds)
        return {"idle": (bench.server.commands() - before) / (time.monotonic() - began)}


MEASURES: dict[str, Callable[[Subject, Sizes], Figures]] = {
    "bulk": bulk,
    "single": single,
    "process-1": process_1,
    "process-2": process_2,
    "late": late,
    "sparse": sparse,
    "memory": memory,
    "idle": idle,
}

#: Hardly different from round to round.
ONCE = {"memory", "idle"}
