"""
Looking at jobs without moving them: get, list, peek, stats.  Every read is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from duly.due import count_due, counted_topics, pages_behind, scheduled_behind, scheduled_topics
from duly.errors import UsageError
from duly.job import Job, JobKey, JobState, Lane, check_topic
from duly.records import NOBODY, head_of, job_of, worker_id
from duly.store.agreement import VERSION, callback_of, is_paused, limit_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from duly.store import Store

PAGE = 1000  #: members that one call looks at, at most

_INDEX = {
    JobState.running: "leases",
    JobState.succeeded: "done",
    JobState.cancelled: "done",
    JobState.dead: "dead",
}
#: A shard, and behind which entry of a stream or of an index to go on.
_STREAM_CURSOR = re.compile(r"([0-9]{1,5}):(|\S+ [a-z]+ [0-9]{1,18}-[0-9]{1,18})")
_INDEX_CURSOR = re.compile(r"([0-9]{1,5}):(|[0-9]{1,17} .+)", re.DOTALL)
_ASIDE = ("waiting", "lanes", VERSION)  #: fields of a topic that say nothing of its jobs
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
        #: Adds to a job what its handler and the settings say, where those are known.
        self.resolve: Callable[[Job], Job] = lambda job: job

    async def get(self, key: JobKey) -> Job | None:
        """
        The job as it is now, None if there is none.
        """
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """
        Jobs as they are now, each at one moment.
        """
        keys = check_keys(keys)
        return [
            self.resolve(job_of(key.member, about, await self._name_of(about[0]))) if about else None
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
            UsageError: The cursor is not one of ours, or the state, topic or limit is none.
        """
        state, limit = check_list(state, topic, limit)
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

        Raises:
            UsageError: The topic or limit is none.
        """
        check_topic(topic)
        check_limit(limit)
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
        about: dict[str, list[dict[str, bytes]]] = {}
        next_due: int | None = None
        now_ms = overdue_ms = 0
        for shard in range(self._store.shards):
            fields = await self._store.link.call("HGETALL", self._key(shard, "topics"))
            for field_, value in zip(fields[::2], fields[1::2], strict=True):
                topic, _, what = field_.decode().partition(":")
                of_shards = about.setdefault(topic, [{} for _ in range(self._store.shards)])
                of_shards[shard][what] = value
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
                {
                    state.name: sum(int(fields.get(state.name, 0)) for fields in of_shards)
                    for state in JobState
                },
                paused=is_paused(of_shards),
                limit=limit_of(of_shards),
                workers=sum(topic in worker.get("topics", ()) for worker in live),
                callback=None if (url := callback_of(of_shards)) is None else url.decode(),
            )
            for topic, of_shards in sorted(about.items())
            # That workers wait for a topic makes it none that has or had jobs.
            if any(not what.endswith(_ASIDE) for fields in of_shards for what in fields)
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

        Raises:
            UsageError: It is no job.
        """
        check_job(job)
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

        Raises:
            UsageError: The key names no job.
        """
        [key] = check_keys([key])
        return self._store._shard(key)  # noqa: SLF001  # its reading half

    async def waiting_since(self, topic: str) -> int | None:
        """
        When the ready job of *topic* was due that waits the longest, None if none waits.

        Raises:
            UsageError: The topic is none.
        """
        check_topic(topic)
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

        Raises:
            UsageError: *now_ms* is no time.
        """
        check_moment(now_ms)
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
        if len(found) < count:
            return members, None
        return members, _place_in(topic, *found[-1]) if topic else place_of(*found[-1])

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

        Raises:
            UsageError: The bounds are not two or more whole numbers, each higher than the one before.
        """
        check_bounds(bounds)
        found = [await count_due(self._store.link, keys, bounds) for keys in self._store.keys]
        return [sum(counts) for counts in zip(*found, strict=True)]

    async def _topics_of(self, shard: int) -> list[str]:
        pages = counted_topics(self._store.link, self._store.keys[shard])
        return sorted({name async for names in pages for name in names})

    def _key(self, shard: int, name: str) -> str:
        return self._store.keys[shard].fixed[name]


def place_of(member: bytes, score: bytes) -> str:
    """
    The place of a member in its index.
    """
    return f"{score.decode()} {member.decode()}"


def _place_in(topic: str, member: bytes, score: bytes) -> str:
    """
    The place behind a member as the jobs of *topic* have it: a cursor names no job of another.
    """
    if member.startswith(f"{topic}/".encode()):
        return place_of(member, score)
    # Those of one score are sorted by name: the jobs of the topic are all behind it, or all in front.
    ms = int(score) if member < f"{topic}/".encode() else int(score) + 1
    return f"{ms} {topic}/"


def check_list(state: JobState | str, topic: str | None, limit: int) -> tuple[JobState, int]:
    """
    Check what a list is asked for; return its state, which may be given by its name, and a limit in bounds.

    Raises:
        UsageError: The state, topic or limit is none.
    """
    state = check_state(state)
    if topic is not None:
        check_topic(topic)
    return state, check_limit(limit)


def check_state(
    state: JobState | str, known: Sequence[JobState] = tuple(JobState), why: str = ""
) -> JobState:
    """
    Return the state that is given, itself or by its name.

    Raises:
        UsageError: It is none of those *known*; the message ends with *why*.
    """
    # By name, because to Python 0 and True are equal to states.
    name = state.name if isinstance(state, JobState) else state
    names = [each.name for each in known]
    if not isinstance(name, str) or name not in names:
        raise UsageError(f"state={state!r} must be one of {', '.join(names)}{why}")
    return JobState[name]


def check_limit(limit: int) -> int:
    """
    Return the size of the page that *limit* asks for, within bounds.

    Raises:
        UsageError: It is no whole number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"limit={limit!r} must be a whole number")
    return max(1, min(limit, PAGE))


def check_cursor(cursor: str | None) -> str | None:
    """
    Return *cursor* if it may be one; the list that it belongs to reads it.

    Raises:
        UsageError: It is no text.
    """
    if cursor is not None and not isinstance(cursor, str):
        raise wrong_cursor(cursor)
    return cursor


def wrong_cursor(cursor: object) -> UsageError:
    """
    The refusal of a cursor.
    """
    return UsageError(f"{cursor!r} is not a cursor of this list: pass the one that the page before gave")


def check_bounds(bounds: Sequence[int]) -> None:
    """
    Check that *bounds* divide time.

    Raises:
        UsageError: They do not.
    """
    # As far as every database counts; a bool counts nothing.
    if not (
        isinstance(bounds, Sequence)
        and len(bounds) > 1
        and all(type(each) is int and abs(each) < 2**53 for each in bounds)
        and all(one < next_ for one, next_ in pairwise(bounds))
    ):
        raise UsageError(
            f"bounds={bounds!r} must be two or more times in whole milliseconds, the earliest first"
        )


def check_keys(keys: Iterable[JobKey]) -> list[JobKey]:
    """
    Check that *keys* name jobs, each by topic and id.

    Raises:
        UsageError: One does not.
    """
    wanted = list(keys) if isinstance(keys, Iterable) and not isinstance(keys, str) else [keys]
    for key in wanted:
        if not isinstance(key, JobKey):
            raise UsageError(f"{key!r} names no job: write JobKey(topic, id), or app.job(topic, id).key")
    return wanted


def _read_cursor(cursor: str | None, state: JobState) -> tuple[int, str]:
    cursor = check_cursor(cursor)
    if cursor is None:
        return 0, ""
    found = (_STREAM_CURSOR if state is JobState.ready else _INDEX_CURSOR).fullmatch(cursor)
    if found is None:
        raise wrong_cursor(cursor)
    return int(found[1]), found[2]


def check_job(job: Any) -> None:
    """
    Make sure that a job was given, and not only its key.

    Raises:
        UsageError: It was not.
    """
    if not isinstance(job, Job):
        raise UsageError(f"a job is needed, as `await views.get(key)` returns it, not {job!r}")


def check_moment(now_ms: Any) -> None:
    """
    Make sure that a time was given.

    Raises:
        UsageError: It was not.
    """
    if not isinstance(now_ms, int):
        raise UsageError(f"now_ms={now_ms!r} must be milliseconds, as `await views.now_ms()` says")
