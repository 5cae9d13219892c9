"""
A rig with a record: faults to order, and what must be true of every row after them.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import func, select

from duly.errors import DulyError
from duly.job import JobKey, JobState
from duly.record.tables import jobs
from tests.acceptance.mixed import Mixed

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from duly.record.reconcile import Report
    from tests.acceptance.harness import Rig
    from tests.databases import Database

CONCURRENCY = 8
PAUSE_S = 0.05


class Patient:
    """
    Sends for `Mixed`, again and again while the record refuses, and counts how often it did.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.refused: Counter[str] = Counter()

    async def enqueue(self, *args: Any, **options: Any) -> PatientHandle:
        return PatientHandle(self, await self.ask(lambda: self._app.enqueue(*args, **options)))

    async def ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except DulyError as error:
                self.refused[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_S)


@dataclass
class PatientHandle:
    """
    A handle whose cancel is as patient.
    """

    patient: Patient
    handle: Any

    @property
    def placed(self) -> Any:
        return self.handle.placed

    async def cancel(self) -> JobState:
        return await self.patient.ask(self.handle.cancel)


@dataclass
class Campaign:
    """
    Jobs of all kinds that go through faults, and how many runs those may have cost.
    """

    rig: Rig
    chance: random.Random
    size: int
    spread_s: float = 4.0
    in_doubt: int = 0  #: runs that faults may have undone: under way, or not committed by a worker that died
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.patient = Patient(self.rig.app)
        self.mixed = Mixed(self.patient, self.chance, spread_s=self.spread_s)

    # -- faults -------------------------------------------------------------------------------------------

    async def work(self, count: int = 2) -> None:
        await self.rig.start_workers(count, "--concurrency", str(CONCURRENCY))

    async def done(self, part: float) -> None:
        """
        Wait until about a part of the jobs has been run.
        """
        await self.rig.ledger.wait_for("finished", int(self.size * part), within_s=100)

    def lost_queue(self, what: str) -> None:
        """
        Note that the queue lost what it had: whatever ran then may run again.
        """
        self.faults.append(what)
        self.in_doubt += CONCURRENCY * len(self.rig.live_workers)

    async def flush(self) -> None:
        self.lost_queue("FLUSHALL")
        # What ran while the database was away is not written yet, and its worker may be killed next.
        self.in_doubt += await self._unwritten()
        await (await self.rig.app.store()).link.call("FLUSHALL")

    async def _unwritten(self) -> int:
        """
        How many jobs ran to the end whose rows do not say so.
        """
        finished = {(line.topic, line.id) for line in self.rig.ledger.read("finished")}
        record = await self.rig.app.record()
        statement = select(jobs.c.topic, jobs.c.id).where(jobs.c.state == JobState.scheduled)
        rows = await self.patient.ask(lambda: record.database.read(lambda c: c.execute(statement).all()))
        return len(finished & {tuple(row) for row in rows})

    def keep_snapshot(self) -> None:
        shutil.copytree(self.rig.server.dir / "appendonlydir", self.rig.server.dir / "kept")

    def restore_snapshot(self) -> None:
        self.lost_queue("an old snapshot")
        server = self.rig.server
        server.kill()
        shutil.rmtree(server.dir / "appendonlydir")
        (server.dir / "kept").rename(server.dir / "appendonlydir")
        server.start()

    def kill_queue(self) -> None:
        """
        Kill the server: the system keeps what was written, so runs go on and nothing is in doubt.

        For servers that are told to sync never: they write before they answer.  One that syncs every
        second answers first where the last sync takes its time.
        """
        self.faults.append("kill -9 of the server")
        self.rig.server.kill()
        self.rig.server.start()

    async def replace_worker(self) -> None:
        """
        Kill a worker: what it ran comes back, and what it had finished is told by the events.
        """
        self.faults.append("kill -9 of a worker")
        self.in_doubt += CONCURRENCY
        self.chance.choice(self.rig.live_workers).kill()
        await self.work(1)

    async def stop_database(self, database: Database, for_s: float) -> None:
        self.faults.append(f"the database away for {for_s:g} s")
        database.kill()
        await asyncio.sleep(for_s)
        await asyncio.to_thread(database.start)

    # -- what must be true --------------------------------------------------------------------------------

    async def all_ended(self, within_s: float) -> int:
        """
        Wait until no row is open; how many still are.
        """
        deadline = time.monotonic() + within_s
        while open_ := await self._open():
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        return open_

    async def _open(self) -> int:
        record = await self.rig.app.record()
        statement = select(func.count()).where(jobs.c.state == JobState.scheduled)
        return int(await self.patient.ask(lambda: record.database.read(lambda c: c.scalar(statement))))

    async def reconcile(self, *, apply: bool = True) -> Report:
        return await (await self.rig.app.record()).reconcile(apply=apply)

    async def check(self) -> None:
        """
        Let it end, and compare the rows with what was promised and with what the handlers wrote down.
        """
        left = await self.all_ended(60)
        print(f"{self.size} jobs; {', '.join(self.faults)}; refused: {dict(self.patient.refused)}")
        logs = [f"--- {worker.pid}\n{worker.said()[-3000:]}" for worker in self.rig.workers[-3:]]
        # Before anything is mended: what was lost came back by itself.
        assert 0 == left, "\n".join(logs)
        assert {} == (await self.reconcile(apply=False)).found

        record = await self.rig.app.record()
        found = await record.database.read(lambda connection: connection.execute(select(jobs)).all())
        rows = {JobKey(row.topic, row.id): row for row in found}
        assert set(self.mixed.expected) == set(rows)
        wrong = {
            str(key): JobState(row.state).name
            for key, row in rows.items()
            if JobState(row.state) not in self.mixed.expected[key]
        }
        assert {} == wrong
        for key, row in rows.items():
            if row.state == JobState.succeeded:
                assert msgspec.json.decode(row.outcome)["version"] in self.mixed.versions[key], f"{key}: old"
        self._check_runs(rows)

    def _check_runs(self, rows: dict[JobKey, Any]) -> None:
        lines = self.rig.ledger.read()
        assert [] == [line for line in lines if line.late_ms < 0], "started early"
        started = [line for line in lines if line.word == "started"]
        late = [line for line in started if line.at_ms > rows[JobKey(line.topic, line.id)].ended_ms]
        # One that was claimed before it was cancelled may begin a moment later, and is stopped.
        cancelled = [line for line in late if rows[JobKey(line.topic, line.id)].state == JobState.cancelled]
        print(f"begun after they were cancelled: {len(cancelled)}")
        assert len(cancelled) <= self.in_doubt, cancelled
        assert len(cancelled) == len(late), f"ran although they had ended: {late}"
        # The run that counts is one that finished: its token came with the result.
        finished = [line for line in lines if line.word == "finished"]
        tokens = {(line.topic, line.id, line.token) for line in finished}
        for key, row in rows.items():
            if row.state == JobState.succeeded:
                token = msgspec.json.decode(row.outcome)["token"]
                assert (key.topic, key.id, token) in tokens, f"{key} succeeded unrun"
        runs = Counter((line.topic, line.id, line.revision) for line in finished)
        again = sum(count - 1 for count in runs.values())
        print(f"run to the end more than once: {again} runs, at most {self.in_doubt} explained")
        assert again <= self.in_doubt
