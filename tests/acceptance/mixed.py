"""
Mixed jobs: immediate, delayed, retrying, cancelled, replaced; and what each of them may end as.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.job import JobKey, JobState
from tests.acceptance.harness import result_of

if TYPE_CHECKING:
    import random

    from duly import Duly
    from duly.job import Job

SUCCEEDED = {JobState.succeeded}
KINDS = "immediate immediate delayed delayed retrying cancelled replaced".split()


class Mixed:
    """
    Sends jobs of all kinds and remembers what was promised about each.
    """

    def __init__(
        self, app: Duly, chance: random.Random, *, spread_s: float = 4.0, topics: str = "loop thread"
    ) -> None:
        self.app = app
        self.chance = chance
        self.spread_s = spread_s
        self.topics = topics.split()
        self.expected: dict[JobKey, set[JobState]] = {}
        self.versions: dict[JobKey, set[int]] = {}
        self.due_ms: dict[JobKey, int] = {}

    async def send(self, size: int) -> None:
        """
        Send *size* jobs within the spread, many at once, and return when all are accepted.
        """
        gate = asyncio.Semaphore(50)

        async def one(number: int) -> None:
            async with gate:
                await self._send(f"j{number}")

        await asyncio.gather(*(one(number) for number in range(size)))

    async def _send(self, id_: str) -> None:
        chance = self.chance
        kind = chance.choice(KINDS)
        key = JobKey(chance.choice(self.topics), id_)
        payload = {"version": 1, "ms": chance.choice([0, 10, 200])}
        delay = chance.uniform(0, self.spread_s) if kind != "immediate" else 0
        if kind == "retrying":
            payload["fail"] = chance.randint(1, 3)
        options = {"id": id_, "delay": delay, "max_crashes": 200, "max_attempts": 5}
        handle = await self.app.enqueue(key.topic, payload, **options)
        self.expected[key], self.versions[key] = SUCCEEDED, {1}
        self.due_ms[key] = handle.placed.due_ms
        if kind == "cancelled":
            await asyncio.sleep(chance.uniform(0, self.spread_s))
            # The answer is final: cancelled now, or ended before.
            self.expected[key] = {await handle.cancel()}
        elif kind == "replaced":
            await asyncio.sleep(chance.uniform(0, self.spread_s))
            payload["version"] = 2
            again = await self.app.enqueue(key.topic, payload, **options, on_conflict="replace")
            self.versions[key] = {2}
            self.due_ms[key] = again.placed.due_ms

    def check(self, jobs: dict[JobKey, Job]) -> None:
        """
        Compare results with what was sent last.
        """
        for key, job in jobs.items():
            if job.state is JobState.succeeded:
                assert result_of(job)["version"] in self.versions[key], f"{key} ran an outdated revision"


async def patiently(call, *args, **options):
    """
    Repeat a call that says that repeating it is safe.
    """
    while True:
        try:
            return await call(*args, **options)
        except DulyError as error:
            print(f"again: {error}")
            await asyncio.sleep(0.05)
