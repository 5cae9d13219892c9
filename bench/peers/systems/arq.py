"""
arq.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arq import create_pool
from arq.connections import RedisSettings

from bench.peers.contract import BEST, PAD, URL, About, Commands, Settings, ran, side_by_side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arq.connections import ArqRedis

_DOCS = "https://arq-docs.helpmanual.io"

ABOUT = About(
    name="arq",
    packages=("arq", "redis", "hiredis", "uvloop"),
    default=Settings(
        "`arq`: one process, 10 jobs at once, looks every 0.5 s", (f"{_DOCS}/#arq.worker.Worker",)
    ),
    best=Settings(
        "`max_jobs=50`, `poll_delay=0.01`, results are not kept (`keep_result=0`); uvloop",
        (f"{_DOCS}/#arq.worker.Worker",),
    ),
    bulk="no bulk call: `enqueue_job`, 50 calls at once",
    delays="`_defer_until`",
    crash="runs again after its time limit of 300 s and 10 s more",
    lacks={"bulk": "no bulk call"},
)

_settings = RedisSettings.from_dsn(URL or "redis://127.0.0.1:1")


async def noop(_: dict[Any, Any], n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


class WorkerSettings:
    functions = (noop,)
    redis_settings = _settings
    if BEST:
        max_jobs = 50
        poll_delay = 0.01
        keep_result = 0


#: arq logs every job at INFO; other systems are told to be quiet, too
LOGS = {"version": 1, "disable_existing_loggers": False, "loggers": {"arq": {"level": "WARNING"}}}


def commands() -> Commands:
    module = "bench.peers.systems.arq"
    arq = [
        str(Path(sys.executable).with_name("arq")),
        f"{module}.WorkerSettings",
        "--custom-log-dict",
        f"{module}.LOGS",
    ]
    return Commands([sys.executable, "-m", "bench.peers.on_uvloop", *arq] if BEST else arq)


class Producer:
    async def __aenter__(self) -> None:
        self._pool: ArqRedis = await create_pool(_settings)

    async def __aexit__(self, *error: object) -> None:
        await self._pool.aclose()

    async def enqueue(self, n: int) -> None:
        await self._pool.enqueue_job("noop", n, PAD)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await side_by_side(self.enqueue, numbers)

    async def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        async def send(job: tuple[int, int]) -> None:
            n, due_ms = job
            due_at = datetime.fromtimestamp(due_ms / 1000, UTC)
            await self._pool.enqueue_job("noop", n, PAD, _defer_until=due_at)

        await side_by_side(send, jobs)
