"""
RQ.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from rq import Queue

from bench.peers.contract import BEST, PAD, URL, About, Blocking, Commands, Settings, batches, ran

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = About(
    name="RQ",
    packages=("rq", "redis", "hiredis"),
    default=Settings(
        "`rq worker --with-scheduler`: a process is forked for each job",
        ("https://python-rq.org/docs/workers/", "https://python-rq.org/docs/scheduling/"),
    ),
    best=Settings(
        "`SimpleWorker`, which does not fork; results are not kept (`result_ttl=0`)",
        ("https://github.com/rq/rq/blob/master/docs/benchmark.md", "https://python-rq.org/docs/results/"),
    ),
    bulk="`enqueue_many`, 1,000 at a time",
    delays="`enqueue_at`, one by one; a scheduler looks every second",
    crash="is marked as failed, and runs again if it has retries",
)

RESULT_TTL = 0 if BEST else None


def noop(n: int, pad: str) -> None:  # noqa: ARG001  # fills the payload
    ran(n)


def commands() -> Commands:
    rq = str(Path(sys.executable).with_name("rq"))
    worker = [rq, "worker", "--url", URL, "--with-scheduler", "--quiet"]
    return Commands([*worker, "--worker-class", "rq.SimpleWorker"] if BEST else worker)


class Producer(Blocking):
    def __init__(self) -> None:
        self._queue = Queue(connection=Redis.from_url(URL))

    def enqueue(self, n: int) -> None:
        self._queue.enqueue(noop, n, PAD, result_ttl=RESULT_TTL)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        for some in batches(numbers):
            self._queue.enqueue_many(
                [Queue.prepare_data(noop, (n, PAD), result_ttl=RESULT_TTL) for n in some]
            )

    def schedule(self, jobs: Sequence[tuple[int, int]]) -> None:
        for n, due_ms in jobs:
            due_at = datetime.fromtimestamp(due_ms / 1000, UTC)
            self._queue.enqueue_at(due_at, noop, n, PAD, result_ttl=RESULT_TTL)
