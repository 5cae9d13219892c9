"""
Celery, with Redis as its broker and no result backend.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from celery import Celery

from bench.peers.contract import BEST, PAD, URL, About, Blocking, Commands, Settings, ran

if TYPE_CHECKING:
    from collections.abc import Sequence

_GUIDE = "https://docs.celeryq.dev/en/stable/userguide"

ABOUT = About(
    name="Celery",
    packages=("celery", "kombu", "redis", "hiredis"),
    default=Settings(
        "`celery worker`: prefork, one process for each core, prefetch multiplier 4",
        (f"{_GUIDE}/workers.html",),
    ),
    best=Settings(
        "one process of 4 threads (`--pool threads`), prefetch multiplier 128, results ignored, "
        "rate limits off, without gossip, mingle and heartbeat",
        (
            f"{_GUIDE}/optimizing.html#prefetch-limits",
            f"{_GUIDE}/concurrency/index.html",
            f"{_GUIDE}/tasks.html#ignore-results-you-don-t-want",
            f"{_GUIDE}/configuration.html#worker-disable-rate-limits",
        ),
    ),
    bulk="`apply_async` within kombu's `Producer.batch`",
    delays="`eta`; the worker fetches such jobs at once and keeps them in its own memory, too",
    crash="is lost if it had started (`acks_late` is off by default), or runs again after an hour",
)

app = Celery("bench", broker=URL)
app.conf.task_ignore_result = BEST
if BEST:
    app.conf.worker_prefetch_multiplier = 128
    app.conf.worker_disable_rate_limits = True


@app.task(name="noop")
def noop(n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


def commands() -> Commands:
    celery = str(Path(sys.executable).with_name("celery"))
    worker = [
        celery,
        "-A",
        "bench.peers.systems.celery",
        "worker",
        "--loglevel",
        "WARNING",
        "-n",
        "w{worker}@%h",
    ]
    pool = ["--pool", "threads", "--concurrency", "4"]
    less = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return Commands([*worker, *pool, *less] if BEST else worker)


class Producer(Blocking):
    def enqueue(self, n: int) -> None:
        noop.delay(n, PAD)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        with app.producer_pool.acquire(block=True) as producer, producer.batch():
            for n in numbers:
                noop.apply_async((n, PAD), producer=producer)

    def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        with app.producer_pool.acquire(block=True) as producer, producer.batch():
            for n, due_ms in jobs:
                noop.apply_async((n, PAD), producer=producer, eta=datetime.fromtimestamp(due_ms / 1000, UTC))
