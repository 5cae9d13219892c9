"""
Everything that a shard holds, read behind the store's back, and what must be true of it at any moment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import redis

from duly.job import JobKey, JobState, Lane
from duly.records import head_of, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.keys import ShardKeys

STATES = [state.name for state in JobState]
MARK_BODY_DROPPED = 4


@dataclass(frozen=True)
class Snapshot:
    """
    A shard at one moment.
    """

    raw: dict[str, bytes]
    jobs: dict[str, SimpleNamespace]
    bodies: dict[str, bytes]
    outcomes: dict[str, bytes]
    progress: dict[str, bytes]
    due: dict[str, int]
    next_due: dict[str, int]  #: by topic
    ready_topics: frozenset[str]
    quarantine: dict[str, bytes]
    leases: dict[str, int]
    done: dict[str, int]
    dead: dict[str, int]
    meta: dict[str, str]
    topics: dict[str, int]
    events: int
    wakes: dict[str, int]
    streams: dict[tuple[str, Lane], dict[int, str]]  #: number of each entry -> member
    replies: dict[str, tuple[str, int, JobState, bytes]]  #: line -> member, revision, state, outcome
    lines: frozenset[str]
    reply_sizes: dict[str, int]  #: line -> what it weighs, by the definition of lib/replies.lua

    def weight(self, member: str) -> int:
        """
        What an ended job weighs, by the definition of lib/ending.lua.
        """
        job = self.jobs[member]
        apart = len(self.bodies.get(member, b"")) if job.apart and not job.marks & MARK_BODY_DROPPED else 0
        return 2 * len(member) + len(self.raw[member]) + apart + len(self.outcomes.get(member, b"")) + 150


def take(client: redis.Redis, keys: ShardKeys, topics: Sequence[str]) -> Snapshot:
    """
    Read a whole shard in one round trip.
    """
    fixed = keys.fixed
    pipe = client.pipeline(transaction=False)
    pipe.response_callbacks.clear()
    for name in ("jobs", "bodies", "outcomes", "progress", "meta", "topics", "quarantine"):
        pipe.execute_command("HGETALL", fixed[name])
    for name in ("next_due", "leases", "done", "dead"):
        pipe.execute_command("ZRANGE", fixed[name], 0, -1, "WITHSCORES")
    pipe.execute_command("SMEMBERS", fixed["ready_topics"])
    pipe.execute_command("XLEN", fixed["events"])
    pipe.execute_command("XRANGE", fixed["replies"], "-", "+")
    pipe.execute_command("ZRANGE", fixed["reply_lines"], 0, -1)
    for topic in topics:
        pipe.execute_command("LLEN", keys.wake(topic))
        pipe.execute_command("ZRANGE", keys.due(topic), 0, -1, "WITHSCORES")
        for lane in Lane:
            pipe.execute_command("XRANGE", keys.stream(topic, lane), "-", "+")
    found = iter(pipe.execute(raise_on_error=False))
    jobs, bodies, outcomes, progress, meta, counters, aside = (_texts(next(found)) for _ in range(7))
    next_due, leases, done, dead = (_scores(next(found)) for _ in range(4))
    ready_topics = frozenset(topic.decode() for topic in next(found))
    events = next(found)
    told = list(next(found))
    replies, reply_sizes = dict(_reply(*entry) for entry in told), dict(_size(*entry) for entry in told)
    lines = frozenset(line.decode() for line in next(found))
    wakes: dict[str, int] = {}
    due: dict[str, int] = {}
    streams = {}
    for topic in topics:
        wakes[topic] = next(found)
        due |= _scores(next(found))
        for lane in Lane:
            streams[topic, lane] = {_number(entry): about[1].decode() for entry, about in next(found)}
    return Snapshot(
        jobs,
        {member: job_of(record) for member, record in jobs.items()},
        bodies,
        outcomes,
        progress,
        due,
        next_due,
        ready_topics,
        aside,
        leases,
        done,
        dead,
        # A number that was taken in vain is no change, nor that somebody is to look whether anybody came.
        {name: value.decode() for name, value in meta.items() if name not in ("sequence", "checked")},
        {
            name: int(value)
            for name, value in counters.items()
            if name.rpartition(":")[2] not in ("callback", "waiting", "lanes")
        },
        events,
        wakes,
        streams,
        replies,
        lines,
        reply_sizes,
    )


def merged(shards: Sequence[Snapshot]) -> Snapshot:
    """
    What several shards hold together; of what each has for itself, the names begin with its number.
    """
    if len(shards) == 1:
        return shards[0]
    joined: dict[str, Any] = {}
    for field in fields(Snapshot):
        parts = [getattr(shard, field.name) for shard in shards]
        match field.name:
            case "events":
                joined[field.name] = sum(parts)
            case "ready_topics":
                joined[field.name] = frozenset().union(*parts)
            case "lines":
                joined[field.name] = frozenset(
                    f"{at}:{line}" for at, lines in enumerate(parts) for line in lines
                )
            case "meta" | "replies":
                joined[field.name] = {
                    f"{at}:{name}": value for at, part in enumerate(parts) for name, value in part.items()
                }
            case "topics" | "wakes":
                joined[field.name] = dict(sum(map(Counter, parts), Counter()))
            case "next_due":
                topics = {topic for part in parts for topic in part}
                joined[field.name] = {
                    topic: min(part[topic] for part in parts if topic in part) for topic in topics
                }
            case "streams":
                joined[field.name] = {
                    name: {
                        (at, number): member
                        for at, part in enumerate(parts)
                        for number, member in part[name].items()
                    }
                    for name in parts[0]
                }
            case _:
                joined[field.name] = {member: value for part in parts for member, value in part.items()}
    return Snapshot(**joined)


def _reply(entry: bytes, about: list[bytes]) -> tuple[str, tuple[str, int, JobState, bytes]]:
    head, _ = head_of(about[5])
    return _line(entry, about), (about[3].decode(), head.revision, head.state, about[7])


def _size(entry: bytes, about: list[bytes]) -> tuple[str, int]:
    name, member, head, outcome = about[1::2]
    return _line(entry, about), 2 * len(name) + len(member) + len(head) + len(outcome) + 250


def _line(entry: bytes, about: list[bytes]) -> str:
    return f"{about[1].decode()} {_number(entry):016d}"


def job_of(record: bytes) -> SimpleNamespace:
    """
    A record with all its fields side by side.
    """
    whole = read(record)
    head = whole.head
    about = head._asdict() | whole._asdict() | {"state": head.state, "lane": head.lane, "apart": whole.apart}
    return SimpleNamespace(**about)


def _scores(found: list[bytes]) -> dict[str, int]:
    return {member: int(float(score)) for member, score in _texts(found).items()}


def _texts(found: list[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(found[::2], found[1::2], strict=True)}


def client_of(path: object) -> redis.Redis:
    """
    A client that returns replies as the server sent them.
    """
    client = redis.Redis(unix_socket_path=str(path), protocol=2)
    client.response_callbacks.clear()
    return client


def _number(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])


def check(shard: Snapshot) -> None:
    """
    Each job is in exactly one place, and the place is the one that its record names.
    """
    waiting: Counter[str] = Counter()
    for (topic, lane), stream in shard.streams.items():
        for number, member in stream.items():
            job = shard.jobs.get(member)
            assert job is not None, f"entry {number} of {topic}:{lane.name} has no job {member}"
            assert number == job.entry, (
                f"{member} is entry {job.entry}, and {number} in {topic}:{lane.name} as well"
            )
            suspect = job.crashes and job.lane is not Lane.callback
            suspected = Lane.suspect if job.crashes == 1 else Lane.isolated
            assert (suspected if suspect else job.lane) == lane, (
                f"{member} waits in the wrong lane {lane.name}"
            )
            waiting[member] += 1
    by_state = {state: {m for m, job in shard.jobs.items() if job.state is state} for state in JobState}
    assert by_state[JobState.scheduled] == shard.due.keys()
    earliest: dict[str, int] = {}
    for member, due_ms in shard.due.items():
        topic = JobKey.of(member).topic
        earliest[topic] = min(due_ms, earliest.get(topic, due_ms))
    assert earliest == shard.next_due
    assert {JobKey.of(member).topic for member in by_state[JobState.ready]} == shard.ready_topics
    assert dict.fromkeys(by_state[JobState.ready], 1) == dict(waiting)
    assert by_state[JobState.running] == shard.leases.keys()
    assert {0} >= {shard.jobs[member].entry for member in by_state[JobState.running]}
    assert by_state[JobState.succeeded] | by_state[JobState.cancelled] == shard.done.keys()
    assert by_state[JobState.dead] == shard.dead.keys()
    check_sizes(shard)


def check_sizes(shard: Snapshot) -> None:
    """
    Counters and byte totals are what the records add up to, and nothing is left behind beside a record.
    """
    counted = Counter(f"{JobKey.of(member).topic}:{job.state.name}" for member, job in shard.jobs.items())
    told = {
        name: number for name, number in shard.topics.items() if name.partition(":")[2] in STATES and number
    }
    assert dict(counted) == told
    for index, field in ((shard.done, "done_bytes"), (shard.dead, "dead_bytes")):
        assert sum(map(shard.weight, index)) == int(shard.meta.get(field, "0")), field
    apart = {m for m, job in shard.jobs.items() if job.apart and not job.marks & MARK_BODY_DROPPED}
    # The body of one whose record was damaged stays for whoever looks at it.
    assert apart - shard.quarantine.keys() == shard.bodies.keys() - shard.quarantine.keys()
    assert shard.outcomes.keys() <= shard.jobs.keys()
    assert shard.replies.keys() == shard.lines
    assert sum(shard.reply_sizes.values()) == int(shard.meta.get("reply_bytes", "0"))
    assert shard.progress.keys() <= {m for m, job in shard.jobs.items() if job.state is JobState.running}
    assert all(tokens <= 16 for tokens in shard.wakes.values())
