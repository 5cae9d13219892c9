"""
docket, whose package is called pydocket.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from docket import Docket, Worker

from bench.peers.contract import BEST, PAD, URL, About, Commands, Settings, ran

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOCS = "https://docket.lol/en/latest"

ABOUT = About(
    name="docket",
    packages=("pydocket", "redis", "hiredis", "uvloop"),
    default=Settings(
        "`docket worker`: one process, 10 jobs at once, looks for due jobs every 250 ms",
        (f"{_DOCS}/production/",),
    ),
    best=Settings(
        "50 jobs at once, looks every 10 ms, ended jobs are not kept (`execution_ttl=0`); uvloop",
        (f"{_DOCS}/production/",),
    ),
    bulk="`add_many`",
    delays="`add_many` with `when`",
    crash="runs again after 5 minutes",
)


async def noop(n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


tasks = [noop]


def make() -> Docket:
    # The command line has no option for `execution_ttl`.
    return Docket(url=URL, **({"execution_ttl": timedelta(0)} if BEST else {}))


def commands() -> Commands:
    if BEST:
        return Commands([sys.executable, "-m", "bench.peers.systems.docket"])
    docket = str(Path(sys.executable).with_name("docket"))
    module = "bench.peers.systems.docket:tasks"
    return Commands([docket, "worker", "--url", URL, "--tasks", module, "--logging-level", "WARNING"])


class Producer:
    async def __aenter__(self) -> None:
        self._docket = await make().__aenter__()
        self._docket.register(noop)

    async def __aexit__(self, *error: object) -> None:
        await self._docket.__aexit__(None, None, None)

    async def enqueue(self, n: int) -> None:
        await self._docket.add(noop)(n, PAD)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._docket.add_many([self._docket.call(noop)(n, PAD) for n in numbers])

    async def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        call = self._docket.call
        await self._docket.add_many(
            [call(noop, when=datetime.fromtimestamp(due_ms / 1000, UTC))(n, PAD) for n, due_ms in jobs]
        )


async def work() -> None:
    look = timedelta(milliseconds=10)
    async with make() as docket:
        docket.register(noop)
        async with Worker(
            docket, concurrency=50, minimum_check_interval=look, scheduling_resolution=look
        ) as worker:
            await worker.run_forever()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as _runner:
        _runner.run(work())
