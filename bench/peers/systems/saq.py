"""
SAQ, with its Redis queue.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from saq import Queue

from bench.peers.contract import BEST, PAD, URL, About, Commands, Settings, ran, side_by_side

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOCS = "https://saq-py.readthedocs.io/en/latest"

ABOUT = About(
    name="SAQ",
    packages=("saq", "redis", "hiredis", "orjson", "uvloop"),
    default=Settings("`saq`: one process, 10 jobs at once", (f"{_DOCS}/usage.html",)),
    best=Settings(
        "`concurrency` 30, orjson (`dump`, `load`), ended jobs are kept for a second (`ttl=1`); uvloop",
        (f"{_DOCS}/settings.html", f"{_DOCS}/queue.html", f"{_DOCS}/job.html"),
    ),
    bulk="no bulk call: `enqueue`, 50 calls at once, of which it lets through 20",
    delays="`scheduled`; a scheduler looks every second, which is its finest setting",
    crash="runs again or is aborted, once it is swept after its time limit",
    lacks={"bulk": "no bulk call"},
)

_codec: dict[str, Any] = {"dump": orjson.dumps, "load": orjson.loads} if BEST else {}
#: Not -1, "disabled": a sweep of SAQ 0.26 then logs an error for a job that has just ended.
_ended = {"ttl": 1} if BEST else {}


async def noop(_: dict[str, Any], *, n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


def settings() -> dict[str, Any]:
    given = {"queue": Queue.from_url(URL, **_codec), "functions": [noop]}
    return given | {"concurrency": 30} if BEST else given


def commands() -> Commands:
    saq = [str(Path(sys.executable).with_name("saq")), "bench.peers.systems.saq.settings"]
    return Commands([sys.executable, "-m", "bench.peers.on_uvloop", *saq] if BEST else saq)


class Producer:
    async def __aenter__(self) -> None:
        self._queue = Queue.from_url(URL, **_codec)
        await self._queue.connect()

    async def __aexit__(self, *error: object) -> None:
        await self._queue.disconnect()

    async def enqueue(self, n: int) -> None:
        await self._queue.enqueue("noop", n=n, pad=PAD, **_ended)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await side_by_side(self.enqueue, numbers)

    async def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        async def send(job: tuple[int, int]) -> None:
            n, due_ms = job
            await self._queue.enqueue("noop", n=n, pad=PAD, scheduled=due_ms / 1000, **_ended)

        await side_by_side(send, jobs)
