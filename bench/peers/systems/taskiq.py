"""
taskiq, with the stream broker and the list schedule source of taskiq-redis.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from bench.peers.contract import BEST, PAD, URL, About, Commands, Settings, ran, side_by_side

if TYPE_CHECKING:
    from collections.abc import Sequence

_GUIDE = "https://taskiq-python.github.io/guide"

ABOUT = About(
    name="taskiq",
    packages=("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop"),
    default=Settings(
        "`taskiq worker`: two processes, each 100 jobs at once; "
        "`taskiq scheduler` reads its schedule once a minute",
        (f"{_GUIDE}/cli.html", f"{_GUIDE}/scheduling-tasks.html"),
    ),
    best=Settings(
        "one process, `--max-prefetch 100 --no-parse`, uvloop; `taskiq scheduler --update-interval 1`",
        (f"{_GUIDE}/cli.html",),
    ),
    bulk="no bulk call: `kiq`, 50 calls at once",
    delays="`schedule_by_time`, 50 calls at once; a process of its own sends what is due once a second",
    crash="runs again after 10 minutes; entries of the stream are never removed",
    lacks={"bulk": "no bulk call"},
)

_url = URL or "redis://127.0.0.1:1"
broker = RedisStreamBroker(_url)
source = ListRedisScheduleSource(_url)
scheduler = TaskiqScheduler(broker, [source])


@broker.task(task_name="noop")
async def noop(n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


def commands() -> Commands:
    taskiq, module = str(Path(sys.executable).with_name("taskiq")), "bench.peers.systems.taskiq"
    worker = [taskiq, "worker", f"{module}:broker", "--log-level", "WARNING"]
    beside = [taskiq, "scheduler", f"{module}:scheduler", "--log-level", "WARNING"]
    if BEST:
        worker += ["--workers", "1", "--max-prefetch", "100", "--no-parse"]
        beside += ["--update-interval", "1"]
    return Commands(worker, beside)


class Producer:
    async def __aenter__(self) -> None:
        await broker.startup()
        await source.startup()

    async def __aexit__(self, *error: object) -> None:
        await source.shutdown()
        await broker.shutdown()

    async def enqueue(self, n: int) -> None:
        await noop.kiq(n, PAD)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await side_by_side(self.enqueue, numbers)

    async def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        async def send(job: tuple[int, int]) -> None:
            n, due_ms = job
            await noop.schedule_by_time(source, datetime.fromtimestamp(due_ms / 1000, UTC), n, PAD)

        await side_by_side(send, jobs)
