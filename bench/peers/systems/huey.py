"""
huey, with its Redis storage.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from huey import RedisHuey

from bench.peers.contract import BEST, PAD, URL, About, Blocking, Commands, Settings, ran

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOCS = "https://huey.readthedocs.io/en/latest"

ABOUT = About(
    name="huey",
    packages=("huey", "redis", "hiredis"),
    default=Settings("`huey_consumer`: one thread", (f"{_DOCS}/consumer.html",)),
    best=Settings(
        "4 threads (`--workers 4`), no results (`results=False`), no periodic tasks (`--no-periodic`)",
        (f"{_DOCS}/consumer.html", f"{_DOCS}/api.html#Huey"),
    ),
    bulk="`map`, which sends one by one",
    delays="`schedule(eta=…)`, one by one; a scheduler looks every second, which is its finest setting",
    crash="is lost: it is taken out of the queue before it runs",
    lacks={"bulk": "no bulk call"},
)

huey = RedisHuey("bench", url=URL or "redis://127.0.0.1:1", results=not BEST)


@huey.task()
def noop(n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


def commands() -> Commands:
    worker = [
        str(Path(sys.executable).with_name("huey_consumer")),
        "bench.peers.systems.huey.huey",
        "--quiet",
    ]
    return Commands([*worker, "--workers", "4", "--no-periodic"] if BEST else worker)


class Producer(Blocking):
    def enqueue(self, n: int) -> None:
        noop(n, PAD)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        noop.map([(n, PAD) for n in numbers])

    def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        for n, due_ms in jobs:
            noop.schedule((n, PAD), eta=datetime.fromtimestamp(due_ms / 1000, UTC))
