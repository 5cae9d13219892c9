"""
One moment of the demonstration, as plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

WorkerState = Literal["starting", "working", "killed", "ended"]


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """
    One worker process.
    """

    name: str
    pid: int
    state: WorkerState
    running: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """
    What there is to see.
    """

    elapsed_s: float
    total: int
    counts: dict[str, int] = field(default_factory=dict)  #: jobs by state
    late_ms: tuple[float, ...] = ()  #: of the jobs that have started once
    workers: tuple[WorkerLine, ...] = ()
    news: tuple[str, ...] = ()

    @property
    def ended(self) -> int:
        """
        How many jobs have come to their end.
        """
        return sum(self.counts.get(state, 0) for state in ("succeeded", "dead", "cancelled"))
