"""
The queue at one moment, as plain values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Lateness:
    """
    How late jobs started that ended a run within the last minute.
    """

    runs: int = 0
    p50_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """
    How often a verb was done.
    """

    verb: str
    per_s: float  #: over the last ten seconds
    last_minute: int


@dataclass(frozen=True, slots=True)
class Topic:
    """
    One topic's backlog.
    """

    topic: str
    scheduled: int
    ready: int
    running: int
    dead: int
    workers: int
    paused: bool = False


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """
    One worker, as it said at its last beat.
    """

    worker: str
    pid: int
    host: str
    running: int
    concurrency: int
    silent_ms: int  #: since its last beat
    live: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """
    Runs of the last minute that failed alike.
    """

    topic: str
    error: str
    count: int
    ago_ms: int  #: since the last of them


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    Everything at a glance.
    """

    at_ms: int  #: by the server's clock
    place: str
    namespace: str
    lateness: Lateness = Lateness()
    rates: tuple[Rate, ...] = ()
    sampled: bool = False  #: whether there was more than could be read: then counts are projected
    topics: tuple[Topic, ...] = ()  #: the busiest first
    due: tuple[int, ...] = ()  #: jobs due within each of the next minutes
    overdue_ms: int = 0  #: how long the oldest due job waits
    overdue_topic: str = ""  #: whose job that is, if it is ready
    workers: tuple[WorkerRow, ...] = ()
    failures: tuple[Failure, ...] = ()  #: the most frequent first
    reached: bool = True
    away_s: float = 0.0  #: how long the server has not answered
    problem: str = ""

    def without_server(self, away_s: float, problem: str) -> Snapshot:
        """
        The same, while the server does not answer.
        """
        return replace(self, reached=False, away_s=round(away_s, 1), problem=problem)

    def totals(self) -> dict[str, int]:
        """
        Jobs by state, over all topics.
        """
        states = ("scheduled", "ready", "running", "dead")
        return {state: sum(getattr(topic, state) for topic in self.topics) for state in states}

    def document(self) -> dict[str, Any]:
        """
        The same for programs.
        """
        return asdict(self) | {"totals": self.totals()}
