"""
What is computed from raw records and from the figures of several rounds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.figures import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EARLY_MS = 1.0  #: some systems know no less than a millisecond
SKIP, UNTIL = 0.10, 0.95  #: shares of the jobs between which a rate is taken: neither start nor end of a run


@dataclass(frozen=True)
class Run:
    """
    One line of the ledger.
    """

    n: int
    at_s: float
    worker: int


@dataclass(frozen=True)
class Window:
    """
    The steady part of a run.
    """

    jobs: int
    begin_s: float
    end_s: float

    @property
    def rate(self) -> float:
        return self.jobs / (self.end_s - self.begin_s)


def window(runs: Iterable[Run]) -> Window:
    """
    The part between the first tenth and the last twentieth of the jobs, and not before every worker runs.

    So a rate has in it neither the start of processes nor jobs that are still to be acknowledged.
    """
    ordered = sorted(runs, key=lambda run: run.at_s)
    first, last = int(len(ordered) * SKIP), int(len(ordered) * UNTIL)
    begun: dict[int, int] = {}
    for at, run in enumerate(ordered):
        begun.setdefault(run.worker, at)
    everybody = max(begun.values(), default=0)
    # A worker that gets its first job near the end, because others took all, is not waited for.
    first = everybody if first < everybody < (first + last) // 2 else first
    if last - first < 10 or ordered[last].at_s <= ordered[first].at_s:
        raise ValueError(f"{len(ordered)} runs are too few for a rate")
    return Window(last - first, ordered[first].at_s, ordered[last].at_s)


def between(samples: Sequence[tuple[float, float]], at_s: float) -> float:
    """
    A growing quantity at *at_s*, from samples of time and value in their order.
    """
    before = samples[0]
    for after in samples:
        if after[0] >= at_s:
            if after[0] == before[0]:
                return after[1]
            share = (at_s - before[0]) / (after[0] - before[0])
            return before[1] + max(0.0, share) * (after[1] - before[1])
        before = after
    return samples[-1][1]


def late_figures(
    name: str, due_ms: Mapping[int, float], runs: Iterable[Run], cut_s: float
) -> dict[str, float]:
    """
    How late jobs began.  One that had not begun at *cut_s* is taken to begin then; their share is told.

    A job that began early is as wrong as one that is late: it counts by how early it was.
    """
    begun: dict[int, float] = {}
    for run in runs:
        if run.n in due_ms:
            begun[run.n] = min(run.at_s, begun.get(run.n, run.at_s))
    late_ms = [1000 * begun.get(n, cut_s) - due for n, due in due_ms.items()]
    return {
        f"{name}_p50": percentile([abs(each) for each in late_ms], 0.5) or 0.0,
        f"{name}_p99": percentile([abs(each) for each in late_ms], 0.99) or 0.0,
        f"{name}_early": float(sum(each < -EARLY_MS for each in late_ms)),
        f"{name}_unstarted": 1 - len(begun) / len(due_ms),
    }


@dataclass(frozen=True)
class Figure:
    """
    A figure of several rounds.
    """

    median: float
    least: float
    most: float
    ratio: float | None  #: to duly's, the median of what it was in each round


def figure(values: Mapping[int, float], duly: Mapping[int, float]) -> Figure:
    """
    Sum up rounds, by number.

    Rounds are compared one by one: a slow minute of the machine falls on both, and the ratio does not notice.
    """
    ratios = [value / duly[turn] for turn, value in values.items() if duly.get(turn)]
    return Figure(
        statistics.median(values.values()),
        min(values.values()),
        max(values.values()),
        statistics.median(ratios) if ratios else None,
    )
