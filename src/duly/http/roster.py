"""
The roster: workers that come over HTTP, by the names they give themselves, for `duly workers ls`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from duly.job import Lane

if TYPE_CHECKING:
    from duly.job import Lease
    from duly.store import Store

WORKERS = 10_000  #: that are remembered
TOPICS = 100  #: that are told of each


@dataclass(slots=True)
class Held:
    """
    A job that a worker was given.
    """

    until_s: float  #: when its lease ends, on the monotonic clock
    lane: Lane
    half: int


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
        self.held: dict[bytes, Held] = {}  #: by fence
        self.makes_room = False  #: it gets nothing until it holds nothing, and then a job that runs isolated
        self._opened: asyncio.Future[None] | None = None
        #: Claims of one name go one by one: the store keeps the last of each, for a reply that was lost.
        self.lock = asyncio.Lock()

    @property
    def running(self) -> int:
        """
        How many jobs it holds, as far as they are known here.
        """
        now_s = time.monotonic()
        self.held = {fence: held for fence, held in self.held.items() if held.until_s > now_s}
        self.makes_room = self.makes_room and bool(self.held)
        return len(self.held)

    @property
    def closed_s(self) -> float:
        """
        For how long it gets no other job, unless it ends those that it holds before: 0 if it does now.
        """
        if not self.running:
            return 0.0
        is_closed = self.makes_room or any(held.lane is Lane.isolated for held in self.held.values())
        return max(held.until_s for held in self.held.values()) - time.monotonic() if is_closed else 0.0

    @property
    def half(self) -> str:
        """
        The half of groups that crashed together of which it holds most suspects, "" if it holds none.
        """
        halves = Counter(held.half for held in self.held.values() if held.lane is Lane.suspect)
        return str(halves.most_common(1)[0][0]) if halves else ""

    def opened(self) -> asyncio.Future[None]:
        """
        A future that is done once it holds nothing.
        """
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
        return self._opened

    def end(self, fence: bytes) -> None:
        """
        Note that it holds a job no more.
        """
        self.held.pop(fence, None)
        if self._opened is not None and not self.running:
            self._opened.set_result(None)
            self._opened = None

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
        self._holders: dict[bytes, tuple[HttpWorker, Held]] = {}  #: by fence

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

    def holds(self, worker: HttpWorker, lease: Lease, lease_ms: int) -> None:
        """
        Note that a worker was given a job.
        """
        worker.claimed += lease.fence_bytes not in worker.held
        held = Held(time.monotonic() + lease_ms / 1000, lease.lane, lease.half)
        worker.held[lease.fence_bytes] = held
        self._holders[lease.fence_bytes] = worker, held

    def extended(self, fence: bytes, lease_ms: int) -> None:
        """
        Note that a worker goes on with a job.
        """
        if found := self._holders.get(fence):
            worker, held = found
            worker.heard = True
            worker.held[fence] = held
            held.until_s = time.monotonic() + lease_ms / 1000

    def ended(self, fence: bytes, *, lost: bool = False) -> None:
        """
        Note that a worker is done with a job, or has lost it.
        """
        if found := self._holders.pop(fence, None):
            worker, _ = found
            worker.heard = True
            worker.end(fence)
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
        self._holders = {fence: found for fence, found in self._holders.items() if fence in found[0].held}
        return 0
