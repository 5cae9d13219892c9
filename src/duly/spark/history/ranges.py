"""
Which entries were read, and which were not.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Run = tuple[int, int]  #: counters from the first to the last, without a hole


@dataclass(frozen=True, slots=True)
class Gap:
    """
    Entries that the history does not hold.
    """

    shard: int
    epoch: str
    first: int
    last: int | None  #: None: it is not known how many
    why: str
    noted_ms: int

    def __str__(self) -> str:
        last = "?" if self.last is None else self.last
        return f"events {self.first} to {last} of shard {self.shard}: {self.why}"


def runs_of(counters: Sequence[int]) -> list[Run]:
    """
    Counters in their order, each maybe many times, as runs.
    """
    runs: list[Run] = []
    for counter in counters:
        if runs and counter <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(counter, runs[-1][1]))
        else:
            runs.append((counter, counter))
    return runs


def missing(runs: Iterable[Run], first: int, last: int) -> list[Run]:
    """
    What the runs leave out between *first* and *last*.
    """
    holes, expected = [], first
    for begin, end in sorted(runs):
        if begin > expected:
            holes.append((expected, min(begin - 1, last)))
        expected = max(expected, end + 1)
        if expected > last:
            break
    if expected <= last:
        holes.append((expected, last))
    return holes
