"""
Looking at jobs without moving them: get, list, peek, stats.  Every read is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from duly.due import count_due, pages_behind, scheduled_behind, scheduled_topics
from duly.errors import UsageError
from duly.job import Job, JobKey, JobState, Lane
from duly.records import NOBODY, head_of, job_of, worker_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from duly.store import Store

CANARY = "duly.canary"  #: the topic of jobs that only show whether jobs get through; not among those of users
PAGE = 1000  #: members that one call looks at, at most

_INDEX = {
    JobState.running: "leases",
    JobState.succeeded: "done",
    JobState.cancelled: "done",
    JobState.dead: "dead",
}
_LANES = (Lane.isolated, Lane.suspect, Lane.high, Lane.normal, Lane.low, Lane.callback)


@dataclass(frozen=True, slots=True)
class Page:
    """
    Some jobs, and where to go on; a page may be short or empty and still have a cursor.
    """

    jobs: list[Job]
    cursor: str | None
    places: list[str] = field(default_factory=list)  #: cursors that go on behind each of the jobs


@dataclass(frozen=True, slots=True)
class TopicStats:
    """
    Counters of one topic.
    """

    topic: str
    counts: dict[str, int]
    paused: bool = False
    limit: int | None = None
    workers: int = 0  #: live workers that take it
    callback: str | None = field(default=None, repr=False)  #: where its jobs are delivered to


@dataclass(frozen=True, slots=True)
class Stats:
    """
    The namespace at a glance.
    """

    topics: list[TopicStats]
    next_due_ms: int | None
    overdue_ms: int  #: how long the oldest due job has waited for promotion
    workers: list[dict[str, Any]] = field(default_factory=list)
    quarantined: int = 0  #: stored jobs that cannot be read


class Views:
    """
    Read-only questions to the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers: dict[bytes, str] = {}

    async def get(self, key: JobKey) -> Job | None:
        """
        The job as it is now, None if there is none.
        """
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """
        Jobs as they are now, each at one moment.
        """
        return [
            job_of(key.member, about, await self._name_of(about[0])) if about else None
            for key, about in zip(keys, await self._store.get(keys), strict=True)
        ]

    async def _name_of(self, record: bytes) -> str:
        """
        Who ran a job last: its name if the worker is still remembered, else the bytes that stand for it.
        """
        worker = head_of(record)[0].worker
        if worker == NOBODY:
            return ""
        if worker not in self._workers:
            names = await self._store.link.call("HKEYS", self._key(0, "workers"))
            self._workers = {worker_id(name.decode()): name.decode() for name in names}
        return self._workers.get(worker, worker.hex())

    async def page(
        self, state: JobState, topic: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """
        Jobs in one state, a page at a time; soonest due or soonest pruned first.

        Raises:
            UsageError: The cursor is not one of ours.
        """
        limit = max(1, min(limit, PAGE))
        shard, place = _read_cursor(cursor, state)
        if shard >= self._store.shards:
            return Page([], None)
        if state is JobState.ready:
            members, place_next = await self._ready_members(shard, topic, place, limit)
        elif state is JobState.scheduled:
            members, place_next = await self._scheduled_members(shard, topic, place, limit)
        else:
            members, place_next = await self._indexed_members(shard, _INDEX[state], topic, place, limit)
        found = await self.get_many([JobKey.of(member) for member, _ in members])
        there = [
            (job, f"{shard}:{place}")
            for job, (_, place) in zip(found, members, strict=True)
            if job is not None and job.state is state
        ]
        if place_next is None:
            shard, place_next = shard + 1, ""
        more = shard < self._store.shards
        return Page(
            [job for job, _ in there],
            f"{shard}:{place_next}" if more else None,
            [place for _, place in there],
        )

    async def each(self, state: JobState, topic: str | None = None) -> AsyncIterator[Job]:
        """
        All jobs in one state, page by page.
        """
        cursor: str | None = None
        while True:
            page = await self.page(state, topic, cursor=cursor, limit=PAGE)
            for job in page.jobs:
                yield job
            if page.cursor is None:
                return
            cursor = page.cursor

    async def peek(self, topic: str, limit: int = 10) -> list[Job]:
        """
        The jobs of *topic* that would be claimed next, without claiming them.
        """
        jobs: list[Job] = []
        cursor: str | None = None
        while len(jobs) < limit:
            page = await self.page(JobState.ready, topic, cursor=cursor, limit=limit - len(jobs))
            jobs += page.jobs
            if page.cursor is None:
                break
            cursor = page.cursor
        return jobs

    async def topics(self) -> list[str]:
        """
        Every topic that has or had jobs.
        """
        return [stats.topic for stats in (await self.stats()).topics]

    async def stats(self) -> Stats:
        """
        Counters, workers and what is overdue.
        """
        about: dict[str, dict[str, int]] = {}
        callbacks: dict[str, str] = {}
        next_due: int | None = None
        now_ms = overdue_ms = 0
        for shard in range(self._store.shards):
            fields = await self._store.link.call("HGETALL", self._key(shard, "topics"))
            for field_, value in zip(fields[::2], fields[1::2], strict=True):
                topic, _, what = field_.decode().partition(":")
                # That workers wait for a topic makes it none that has or had jobs.
                if topic == CANARY or what in ("waiting", "lanes"):
                    continue
                counts = about.setdefault(topic, {})
                if what == "callback":
                    callbacks[topic] = value.decode()
                    continue
                counts[what] = counts.get(what, 0) + int(float(value))
            head = await self._store.link.call("ZRANGE", self._key(shard, "next_due"), 0, 0, "WITHSCORES")
            now_ms = await self.now_ms()
            if head:
                due_ms = int(float(head[1]))
                next_due = due_ms if next_due is None else min(next_due, due_ms)
                overdue_ms = max(overdue_ms, now_ms - due_ms)
        workers = await self.workers(now_ms)
        live = [worker for worker in workers if worker["live"]]
        stats = [
            TopicStats(
                topic,
                {state.name: counts.get(state.name, 0) for state in JobState},
                paused="paused" in counts,
                limit=counts.get("limit"),
                workers=sum(topic in worker.get("topics", ()) for worker in live),
                callback=callbacks.get(topic),
            )
            for topic, counts in sorted(about.items())
        ]
        return Stats(stats, next_due, overdue_ms, workers, sum(await self._store.quarantine_sizes()))

    async def now_ms(self) -> int:
        """
        The time by the server's clock.
        """
        seconds, micros = await self._store.link.call("TIME")
        return self._store.now_ms(int(seconds) * 1000 + int(micros) // 1000)

    async def newest(self) -> list[int]:
        """
        The newest numbers there are, for `changed`.
        """
        return await self._numbers("sequence")

    def changed(self, job: Job, newest: Sequence[int]) -> bool:
        """
        Whether a job was sent or changed after `newest` was asked; its runs do not count.
        """
        return job.revision > newest[self.shard_of(job.key)]

    async def replies_dropped(self) -> int:
        """
        How many replies nobody took in time, or before there were too many, ever.
        """
        return sum(await self._numbers("replies_dropped"))

    async def _numbers(self, name: str) -> list[int]:
        link = self._store.link
        found = [
            await link.call("HGET", self._key(shard, "meta"), name) for shard in range(self._store.shards)
        ]
        return [int(number or 0) for number in found]

    def shard_of(self, key: JobKey) -> int:
        """
        Which shard a job is on.
        """
        return self._store._shard(key)  # noqa: SLF001  # its reading half

    async def waiting_since(self, topic: str) -> int | None:
        """
        When the ready job of *topic* was due that waits the longest, None if none waits.
        """
        heads = []
        for shard in range(self._store.shards):
            for lane in Lane:
                stream = self._store.keys[shard].stream(topic, lane)
                entries = await self._store.link.call("XRANGE", stream, "-", "+", "COUNT", 1)
                heads += [JobKey.of(entry[1][1]) for entry in entries]
        jobs = await self.get_many(heads)
        return min((job.due_ms for job in jobs if job and job.state is JobState.ready), default=None)

    async def workers(self, now_ms: int) -> list[dict[str, Any]]:
        """
        What workers say of themselves, and whether they were heard within a lease.
        """
        told = await self._store.link.call("HGETALL", self._key(0, "workers"))
        beats = await self._store.link.call("ZRANGE", self._key(0, "beats"), 0, PAGE, "WITHSCORES")
        heard = dict(zip(beats[::2], (int(float(ms)) for ms in beats[1::2]), strict=True))
        workers = []
        for name, about in zip(told[::2], told[1::2], strict=True):
            silent_ms = now_ms - heard.get(name, 0)
            workers.append(
                {
                    "worker": name.decode(),
                    **msgspec.json.decode(about),
                    "silent_ms": silent_ms,
                    "live": silent_ms < self._store.lease_ms,
                }
            )
        return workers

    async def _scheduled_members(
        self, shard: int, topic: str | None, place: str, limit: int
    ) -> tuple[list[tuple[bytes, str]], str | None]:
        link, keys = self._store.link, self._store.keys[shard]
        topics = [topic] if topic else await scheduled_topics(link, keys)
        found = await scheduled_behind(link, keys, topics, place, limit)
        members = [(member, place_of(member, score)) for member, score in found]
        return members, members[-1][1] if len(members) == limit else None

    async def _indexed_members(
        self, shard: int, index: str, topic: str | None, place: str, limit: int
    ) -> tuple[list[tuple[bytes, str]], str | None]:
        # With a topic to look for, read on through others, but never more than a page of them.
        count = PAGE if topic else limit
        [found] = await pages_behind(self._store.link, [self._key(shard, index)], place, count)
        members: list[tuple[bytes, str]] = []
        prefix = f"{topic}/".encode() if topic else b""
        for member, score in found:
            if member.startswith(prefix):
                members.append((member, place_of(member, score)))
            if len(members) == limit:
                return members, members[-1][1]
        return members, place_of(*found[-1]) if len(found) == count else None

    async def _ready_members(
        self, shard: int, topic: str | None, place: str, limit: int
    ) -> tuple[list[tuple[bytes, str]], str | None]:
        topics = [topic] if topic else await self._topics_of(shard)
        at_topic, _, rest = place.partition(" ")
        at_lane, _, after = rest.partition(" ")
        order = [(name, lane) for name in topics for lane in _LANES]
        members: list[tuple[bytes, str]] = []
        if at_topic:
            position = next(
                (at for at, (name, lane) in enumerate(order) if (name, lane.name) == (at_topic, at_lane)),
                None,
            )
            if position is None:
                return [], None
            order = order[position:]
        for name, lane in order:
            start = f"({after}" if after else "-"
            after = ""
            entries = await self._store.link.call(
                "XRANGE",
                self._store.keys[shard].stream(name, lane),
                start,
                "+",
                "COUNT",
                limit - len(members),
            )
            members += [(fields[1], f"{name} {lane.name} {entry.decode()}") for entry, fields in entries]
            if len(members) >= limit:
                return members, members[-1][1]
        return members, None

    async def due_counts(self, bounds: Sequence[int]) -> list[int]:
        """
        How many scheduled jobs are due from each of *bounds* on and before the next, in milliseconds.

        Of each shard the hundred topics are counted that are due first.
        """
        found = [await count_due(self._store.link, keys, bounds) for keys in self._store.keys]
        return [sum(counts) for counts in zip(*found, strict=True)]

    async def _topics_of(self, shard: int) -> list[str]:
        fields = await self._store.link.call("HKEYS", self._key(shard, "topics"))
        return sorted({name.decode().partition(":")[0] for name in fields})

    def _key(self, shard: int, name: str) -> str:
        return self._store.keys[shard].fixed[name]


def place_of(member: bytes, score: bytes) -> str:
    """
    The place of a member in its index.
    """
    return f"{score.decode()} {member.decode()}"


def _read_cursor(cursor: str | None, state: JobState) -> tuple[int, str]:
    if cursor is None:
        return 0, ""
    shard, colon, place = cursor.partition(":")
    scored = not place or state is JobState.ready or place.partition(" ")[0].isdigit()
    if not colon or not shard.isdigit() or not scored:
        msg = f"{cursor!r} is not a cursor of this list: pass the one that the page before gave"
        raise UsageError(msg)
    return int(shard), place
