"""
The roster: workers that come over HTTP, by the names they give themselves, for `duly workers ls`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from duly.store import Store

WORKERS = 10_000  #: that are remembered
TOPICS = 100  #: that are told of each


class HttpWorker:
    """
    What this process knows of one worker.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = ""
        self.topics: dict[str, None] = {}
        self.limit = 0
        self.claimed = self.finished = self.fenced = 0
        self.polls = 0  #: of its claims that are under way
        self.heard = False  #: since the last beat
        self.held: dict[bytes, float] = {}  #: fence -> until when its lease runs, on the monotonic clock
        #: Claims of one name go one by one: the store keeps the last of each, for a reply that was lost.
        self.lock = asyncio.Lock()

    @property
    def running(self) -> int:
        """
        How many jobs it holds, as far as they are known here.
        """
        now_s = time.monotonic()
        self.held = {fence: until_s for fence, until_s in self.held.items() if until_s > now_s}
        return len(self.held)

    def about(self) -> bytes:
        """
        What is told of it.
        """
        return msgspec.json.encode(
            {
                "host": self.host,
                "pid": 0,
                "topics": list(self.topics),
                "concurrency": self.limit,
                "running": self.running,
                "claimed": self.claimed,
                "finished": self.finished,
                "fenced": self.fenced,
            }
        )


class Roster:
    """
    Tells the queue which workers were heard.
    """

    def __init__(self, store: Store) -> None:
        self.every_s = store.lease_ms / 3000
        self._store = store
        self._workers: OrderedDict[str, HttpWorker] = OrderedDict()
        self._holders: dict[bytes, HttpWorker] = {}

    async def claims(self, name: str, topic: str, host: str, limit: int) -> HttpWorker:
        """
        Note that a worker asks for work; one that is new is told of at once.
        """
        worker = self._workers.pop(name, None)
        new = worker is None or topic not in worker.topics
        worker = worker or HttpWorker(name)
        self._workers[name] = worker
        worker.host, worker.limit, worker.heard = host, limit, True
        worker.topics[topic] = None
        while len(worker.topics) > TOPICS:
            del worker.topics[next(iter(worker.topics))]
        while len(self._workers) > WORKERS:
            self._workers.popitem(last=False)
        if new:
            await self._store.beat(name, worker.about())
        return worker

    def holds(self, worker: HttpWorker, fence: bytes, lease_ms: int) -> None:
        """
        Note that a worker was given a job.
        """
        worker.claimed += 1
        worker.held[fence] = time.monotonic() + lease_ms / 1000
        self._holders[fence] = worker

    def extended(self, fence: bytes, lease_ms: int) -> None:
        """
        Note that a worker goes on with a job.
        """
        if worker := self._holders.get(fence):
            worker.heard = True
            worker.held[fence] = time.monotonic() + lease_ms / 1000

    def ended(self, fence: bytes, *, lost: bool = False) -> None:
        """
        Note that a worker is done with a job, or has lost it.
        """
        if worker := self._holders.pop(fence, None):
            worker.heard = True
            worker.held.pop(fence, None)
            worker.finished += 1
            worker.fenced += lost

    async def run_once(self) -> int:
        """
        Tell of who was heard since the last time, or still waits for an answer.
        """
        for worker in list(self._workers.values()):
            if worker.heard or worker.polls:
                worker.heard = False
                await self._store.beat(worker.name, worker.about())
        # A lease that ran out without a word is nobody's any more.
        self._holders = {fence: each for fence, each in self._holders.items() if fence in each.held}
        return 0
