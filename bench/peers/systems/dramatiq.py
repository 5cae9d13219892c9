"""
dramatiq, with its Redis broker.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.contract import BEST, PAD, URL, About, Blocking, Commands, Settings, ran

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = About(
    name="dramatiq",
    packages=("dramatiq", "redis", "hiredis"),
    default=Settings(
        "`dramatiq`: one process of 8 threads for each core", ("https://dramatiq.io/guide.html#workers",)
    ),
    best=Settings(
        "one process of 8 threads, prefetch of 1000 (`dramatiq_queue_prefetch`)",
        (
            "https://dramatiq.io/guide.html#workers",
            "https://dramatiq.io/reference.html#environment-variables",
        ),
    ),
    bulk="`group(…).run()`, which sends one by one",
    delays="`delay`; the worker fetches such jobs at once, up to 1000 for each thread",
    crash="runs again once its worker has been silent for 60 s",
    lacks={"bulk": "no bulk call"},
)

broker = RedisBroker(url=URL or "redis://127.0.0.1:1")
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


def commands() -> Commands:
    worker = [str(Path(sys.executable).with_name("dramatiq")), "bench.peers.systems.dramatiq"]
    if not BEST:
        return Commands(worker)
    return Commands(["env", "dramatiq_queue_prefetch=1000", *worker, "--processes", "1", "--threads", "8"])


class Producer(Blocking):
    def enqueue(self, n: int) -> None:
        noop.send(n, PAD)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        dramatiq.group([noop.message(n, PAD) for n in numbers]).run()

    def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        for n, due_ms in jobs:
            noop.send_with_options(args=(n, PAD), delay=max(0, due_ms - int(time.time() * 1000)))
