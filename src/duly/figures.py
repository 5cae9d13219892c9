"""
Figures for people: percentiles, histograms as text, durations in words.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Upper ends of the bars of a histogram of lateness, in milliseconds; the last bar has no end.
LATENESS_MS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)

_BLOCKS = " ▏▎▍▌▋▊▉█"


def percentile(values: Sequence[float], share: float) -> float | None:
    """
    The smallest of *values* that at least *share* of them do not exceed; None if there are none.
    """
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def percentile_of(counts: Mapping[int, float], share: float) -> int | None:
    """
    The same for values of which only the number of each is known.
    """
    total = sum(counts.values())
    if not total:
        return None
    seen = 0.0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * total:
            return value
    return max(counts)


def spread(values: Iterable[float], ends: Sequence[float] = LATENESS_MS) -> list[tuple[str, int]]:
    """
    How many of *values* lie below each of *ends* and not below the one before, with a label for each.
    """
    counts = [0] * (len(ends) + 1)
    for value in values:
        counts[next((at for at, end in enumerate(ends) if value < end), len(ends))] += 1
    labels = [f"< {amount(end)}" for end in ends] + [f"≥ {amount(ends[-1])}"]
    return list(zip(labels, counts, strict=True))


def bar(value: float, most: float, width: int) -> str:
    """
    A bar of up to *width* characters, to an eighth of one; what is there at all is seen.
    """
    if value <= 0 or most <= 0:
        return ""
    eighths = max(1, round(min(value / most, 1.0) * width * 8))
    return "█" * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")


def histogram(rows: Sequence[tuple[str, int]], width: int = 40) -> list[str]:
    """
    A line for each of *rows*: its label, its bar, its number.
    """
    most = max((count for _, count in rows), default=0)
    wide = max((len(label) for label, _ in rows), default=0)
    return [f"{label:>{wide}}  {bar(count, most, width):{width}}  {count:,}" for label, count in rows]


def amount(ms: float | None) -> str:
    """
    A duration in the unit that suits it: 0.4 ms, 12 ms, 3.2 s, 5 min, 2.5 h.
    """
    if ms is None:
        return "-"
    if ms < 0:
        return f"-{amount(-ms)}"
    if ms < 1_000:
        return f"{ms:.1f} ms" if ms < 10 and ms != int(ms) else f"{ms:.0f} ms"
    for size, unit, most in ((1_000, "s", 120), (60_000, "min", 120), (3_600_000, "h", 48)):
        if ms / size < most:
            return f"{ms / size:.3g} {unit}"
    return f"{ms / 86_400_000:.3g} d"
