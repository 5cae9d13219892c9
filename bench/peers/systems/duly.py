"""
duly itself, as it is checked out.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bench.peers.contract import BEST, PAD, URL, About, Commands, Settings, ran
from duly import Duly, DulyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly import NewJob

ABOUT = About(
    name="duly",
    packages=("duly", "redis", "hiredis", "uvloop"),
    default=Settings(
        "`duly work`: one process, 16 jobs at once", ("docs/reference/cli.md", "docs/reference/settings.md")
    ),
    best=Settings(
        "`--concurrency 1000`; ended jobs are not kept (`keep_succeeded=0`)",
        ("docs/reference/cli.md", "docs/reference/settings.md"),
    ),
    bulk="`enqueue_many`",
    delays="`due_at`",
    crash="runs again once its lease of 15 s is over",
)

app = Duly(URL or None, **({"keep_succeeded": 0} if BEST else {}))


@app.handler("bench")
async def noop(n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


def commands() -> Commands:
    worker = [sys.executable, "-m", "duly", "work", "bench.peers.systems.duly:app", "--log-level", "WARNING"]
    return Commands([*worker, "--concurrency", "1000"] if BEST else worker)


class Producer:
    async def __aenter__(self) -> None:
        await app.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await app.__aexit__(*error)

    async def enqueue(self, n: int) -> None:
        await app.enqueue(noop.job(n, PAD))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._send([noop.job(n, PAD) for n in numbers])

    async def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        await self._send(
            [
                noop.job(n, PAD).options(due_at=datetime.fromtimestamp(due_ms / 1000, UTC))
                for n, due_ms in jobs
            ]
        )

    async def _send(self, jobs: list[NewJob[None]]) -> None:
        for outcome in await app.enqueue_many(jobs):
            if isinstance(outcome, DulyError):
                raise outcome
