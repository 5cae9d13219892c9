"""
The scene: a server, workers, a service, jobs, a worker killed half-way; all of it is taken down again.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter, deque
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from duly.app import Duly
from duly.demo.ending import Ending
from duly.demo.frame import Frame, WorkerLine
from duly.demo.ledger import HERE, Ledger, prove
from duly.demo.service import Service, available
from duly.embedded import keeper
from duly.embedded.server import EmbeddedServer
from duly.errors import DulyError, UsageError
from duly.job import JobKey, JobState
from duly.newjob import new_job
from duly.settings import Settings
from duly.supervise.child import Child, Program, duly_command, environment, stop_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from duly.demo.frame import WorkerState
    from duly.demo.ledger import Line, Proof

TOPICS = ("mail.send", "invoice.print", "reminder.call")
SHORTEST_MS, LONGEST_MS = 50, 300
LOOK_S = 0.1
START_S = 60.0  #: how long the workers may take to appear
SLACK_S = 30.0  #: how long after the last due time and a lease everything must have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    How large the demonstration is.
    """

    count: int = 50
    within_s: float = 12.0
    workers: int = 3
    lease_s: float = 2.0
    seed: int = 1
    page: Path | None = None  #: where the report goes that Spark makes of it; None for no report

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise UsageError(f"workers={self.workers}: one is killed, so there must be at least 2")
        if self.count < 4:
            raise UsageError(f"count={self.count}: half-way there must be something to do; use at least 4")
        if not 1 <= self.within_s <= 3600:
            raise UsageError(f"within={self.within_s:g} s must be from 1 s to 1 h")

    def jobs(self) -> list[tuple[str, str, float, int]]:
        """
        Topic, id, seconds until due and milliseconds to run of each job, in the order of their due times.
        """
        chance = random.Random(self.seed)  # reproducible, not secret
        delays = sorted(chance.uniform(0.5, self.within_s) for _ in range(self.count))
        jobs: list[tuple[str, str, float, int]] = []
        for number, delay_s in enumerate(delays, 1):
            ms = chance.randrange(SHORTEST_MS, LONGEST_MS)
            # From half-way on they take long enough to be caught running.
            if delay_s >= self.half_s and not any(job[2] >= self.half_s for job in jobs[:-2]):
                ms = LONGEST_MS
            jobs.append((TOPICS[number % len(TOPICS)], f"job-{number:03d}", delay_s, ms))
        return jobs

    @property
    def half_s(self) -> float:
        """
        When the worker is killed.
        """
        return self.within_s / 2


@dataclass(frozen=True, slots=True)
class Played:
    """
    How it went.
    """

    plan: Plan
    proof: Proof
    counts: dict[str, int]  #: jobs by state, as the store counts them
    killed: WorkerLine | None
    took_s: float
    page: Path | None = None  #: the report, if there is one
    no_page: str = ""  #: why there is none

    @property
    def shown(self) -> bool:
        """
        Whether the demonstration has shown what it is for.
        """
        succeeded = self.counts.get("succeeded", 0)
        return self.proof.holds and self.killed is not None and succeeded == self.proof.submitted


class Scene:
    """
    One run of the demonstration.
    """

    def __init__(
        self, plan: Plan, *, show: Callable[[Frame], None], say: Callable[[float, str], None]
    ) -> None:
        """
        Prepare: *show* is called with each moment, *say* with each piece of news and its time.
        """
        self._plan = plan
        self._show = show
        self._say = say
        self._began_s = time.monotonic()
        self._frame = Frame(0.0, plan.count)
        self._children: list[Child] = []
        self._service = Service() if available() else None
        self._ending = Ending(plan.page) if plan.page is not None else None
        self._killed: WorkerLine | None = None
        self._due_ms: dict[str, int] = {}
        self._keys: dict[str, JobKey] = {}
        self._words: dict[str, deque[str]] = {}

    async def play(self) -> Played:
        """
        Run it from beginning to end.  Nothing is left behind, however it ends.

        Raises:
            DulyError: Server or workers did not come up.
        """
        plan = self._plan
        async with AsyncExitStack() as stack:
            folder = await stack.enter_async_context(_folder())
            url = await stack.enter_async_context(_server(folder))
            settings = Settings(url=url, namespace="demo", lease_ms=round(plan.lease_s * 1000))
            app = await stack.enter_async_context(Duly(settings=settings))
            self._news(f"a Valkey server of its own is up in {folder}")
            stack.push_async_callback(self._stop)
            if self._ending is not None:
                await self._ending.start(url, folder)
            await self._start(app, url, folder)
            await self._submit(app)
            ledger = Ledger(folder / HERE)
            counts = await self._watch(app, ledger)
            self._news("all jobs have ended" if self._frame.ended >= plan.count else "time is over")
            await self._stop_workers()
            self._look(ledger, counts)
            proof = prove(self._due_ms, ledger.read(), plan.lease_s * 1000)
            played = Played(plan, proof, dict(counts), self._killed, time.monotonic() - self._began_s)
            return await self._end(played)

    async def _end(self, played: Played) -> Played:
        """
        Have the page written, from the events that the server still has.
        """
        if self._ending is None:
            return played
        self._news("Spark writes down what happened, and makes a report of it")
        why_not = await self._ending.write()
        if why_not:
            return replace(played, no_page=f"Spark made no report: {why_not}")
        return replace(played, page=self._ending.page)

    # -- setting up ---------------------------------------------------------------------------------------

    async def _start(self, app: Duly, url: str, folder: Path) -> None:
        plan = self._plan
        env = environment(
            DULY_URL=url,
            DULY_NAMESPACE="demo",
            DULY_LEASE=f"{plan.lease_s}s",
            DULY_RECOVER_SCAN="200ms",
            DULY_DRAIN_GRACE="5s",
        )
        if self._service is not None:
            await self._service.start(env, folder)
        command = duly_command("work", "duly.demo.app:app", "--concurrency", "8")
        for number in range(1, plan.workers + 1):
            program = Program(f"worker-{number}", command, env, folder)
            words = self._words[program.name] = deque(maxlen=8)
            self._children.append(await Child.start(program, words.append))
            self._look(None, Counter())
        views = await app.views()
        deadline = time.monotonic() + START_S
        while sum(worker["live"] for worker in (await views.stats()).workers) < plan.workers:
            ended = next((child for child in self._children if child.code is not None), None)
            if ended is not None or time.monotonic() > deadline:
                child = ended or self._children[0]
                why = " / ".join(self._words[child.program.name]) or "no word why"
                raise DulyError(f"{child.program.name} did not start: {why}")
            self._look(None, Counter())
            await asyncio.sleep(LOOK_S)
        pids = ", ".join(str(child.pid) for child in self._children)
        self._news(f"{plan.workers} workers are up: {pids}")

    async def _submit(self, app: Duly) -> None:
        """
        Send the jobs as a program elsewhere would: over HTTP, where that is installed.
        """
        if self._service is None:
            return await self._send(app, "")
        url = await self._service.url()
        self._news(f"the queue is served at {url}")
        async with Duly(settings=Settings(url=url)) as remote:
            return await self._send(remote, " over HTTP")

    async def _send(self, app: Duly, how: str) -> None:
        now = datetime.now(UTC)
        jobs = [
            new_job(topic, {"ms": ms}, app.settings.limits).options(
                id=id_, due_at=now + timedelta(seconds=delay_s)
            )
            for topic, id_, delay_s, ms in self._plan.jobs()
        ]
        for answer in await app.enqueue_many(jobs):
            if isinstance(answer, DulyError):
                raise answer
            self._keys[answer.id] = answer.key
            if answer.placed is not None:
                self._due_ms[answer.id] = answer.placed.due_ms
        self._news(f"{len(self._due_ms)} jobs are submitted{how}, due within {self._plan.within_s:g} s")

    # -- playing ------------------------------------------------------------------------------------------

    async def _watch(self, app: Duly, ledger: Ledger) -> Counter[str]:
        plan = self._plan
        views = await app.views()
        submitted_s = time.monotonic()
        deadline = submitted_s + plan.within_s + plan.lease_s + SLACK_S
        known_again: set[str] = set()
        while True:
            counts: Counter[str] = Counter()
            for topic in (await views.stats()).topics:
                counts.update(topic.counts)
            self._look(ledger, counts)
            for id_ in self._again(ledger) - known_again:
                known_again.add(id_)
                self._news(f"{id_} was taken back by its lease and started again")
            if self._frame.ended >= plan.count or time.monotonic() > deadline:
                return counts
            until = time.monotonic() + LOOK_S
            while time.monotonic() < until:
                if self._killed is None and time.monotonic() - submitted_s >= plan.half_s:
                    await self._kill_one(app, ledger)
                await asyncio.sleep(0.005)

    async def _kill_one(self, app: Duly, ledger: Ledger) -> None:
        """
        Kill a worker that is running a job; none if there is none at this moment.
        """
        ledger.read()
        for run in ledger.open_runs().values():
            child = next((each for each in self._children if each.pid == run.pid), None)
            if child is None or not await _hold_still(child):
                continue
            if await self._is_caught(app, ledger, child):
                caught = [id_ for id_, each in ledger.open_runs().items() if each.pid == child.pid]
                child.send(signal.SIGKILL)
                await child.wait()
                self._killed = WorkerLine(child.program.name, child.pid, "killed", len(caught))
                self._news(
                    f"{child.program.name} (pid {child.pid}) is killed with SIGKILL while it runs "
                    f"{', '.join(caught)}"
                )
                return
            child.send(signal.SIGCONT)

    async def _is_caught(self, app: Duly, ledger: Ledger, child: Child) -> bool:
        """
        Whether a worker that stands still is in the midst of a job, and of nothing else.

        A job that has written its last line and is not yet acknowledged would run again, rightly, and the
        ledger would show it twice.  That is what at-least-once means, but not what is to be shown here.
        """
        ledger.read()
        if not any(run.pid == child.pid for run in ledger.open_runs().values()):
            return False
        finished = [
            self._keys[line.id]
            for line in ledger.lines
            if line.word == "finished" and line.pid == child.pid and line.id in self._keys
        ]
        jobs = await (await app.views()).get_many(finished)
        return all(job is not None and job.state is JobState.succeeded for job in jobs)

    # -- showing ------------------------------------------------------------------------------------------

    def _news(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._say(elapsed_s, text)
        news = (*self._frame.news, f"{elapsed_s:5.1f} s  {text}")
        self._frame = replace(self._frame, news=news)
        self._show(self._frame)

    def _look(self, ledger: Ledger | None, counts: Counter[str]) -> None:
        lines = ledger.read() if ledger is not None else []
        open_runs = ledger.open_runs() if ledger is not None else {}
        again = self._again(ledger) if ledger is not None else set()
        self._frame = replace(
            self._frame,
            elapsed_s=time.monotonic() - self._began_s,
            counts=dict(counts),
            late_ms=tuple(
                line.at_ms - self._due_ms[line.id]
                for line in lines
                if line.word == "started" and line.id in self._due_ms and line.id not in again
            ),
            workers=tuple(self._about(child, lines, open_runs) for child in self._children),
        )
        self._show(self._frame)

    def _about(self, child: Child, lines: list[Line], open_runs: dict[str, Line]) -> WorkerLine:
        state: WorkerState = "working" if self._due_ms else "starting"
        if self._killed is not None and self._killed.pid == child.pid:
            state = "killed"
        elif child.code is not None:
            state = "ended"
        running = sum(run.pid == child.pid for run in open_runs.values()) if state == "working" else 0
        finished = sum(line.word == "finished" and line.pid == child.pid for line in lines)
        return WorkerLine(child.program.name, child.pid, state, running, finished)

    def _again(self, ledger: Ledger) -> set[str]:
        starts = Counter(line.id for line in ledger.lines if line.word == "started")
        return {id_ for id_, times in starts.items() if times > 1}

    async def _stop(self) -> None:
        await self._stop_workers(*(self._ending.children if self._ending is not None else []))

    async def _stop_workers(self, *others: Child) -> None:
        # One that stands still cannot hear anything else.
        for child in self._children:
            child.send(signal.SIGCONT)
        served = self._service.children if self._service is not None else []
        await stop_all([*self._children, *served, *others], within_s=10.0)


async def _hold_still(child: Child) -> bool:
    """
    Stop a process, and return once it stands; False if it has ended instead.
    """
    child.send(signal.SIGSTOP)
    while True:
        try:
            pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED)  # noqa: ASYNC222  # WNOHANG
        except ChildProcessError:
            return False
        if pid:
            return os.WIFSTOPPED(status)
        await asyncio.sleep(0.001)


@asynccontextmanager
async def _folder() -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="duly-demo-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[str]:
    data = folder / "data"
    server = EmbeddedServer(data, "everysec", linger_s=0)
    try:
        yield await asyncio.to_thread(server.start)
    finally:
        await asyncio.to_thread(server.close)
        await asyncio.to_thread(_wait_until_gone, data)


def _wait_until_gone(data: Path, within_s: float = 15.0) -> None:
    """
    Wait until keeper and server have ended: the folder below them is removed next.
    """
    deadline = time.monotonic() + within_s
    for name in (keeper.KEEPER_LOCK, keeper.SERVER_LOCK):
        while (data / name).exists() and time.monotonic() < deadline:
            lock = keeper.take(str(data / name))
            if lock is not None:
                os.close(lock)
                break
            time.sleep(0.02)
