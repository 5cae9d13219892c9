"""
Run measures several times, take medians, and say on what machine.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.bench.figure import Figure
from duly.bench.measures import MEASURES
from duly.bench.rig import rig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.bench.measures import Sizes

#: Slow, and hardly different from run to run.
ONCE = {"backlog", "idle", "memory"}


async def measure(
    names: Sequence[str], sizes: Sizes, runs: int, url: str | None, record: str | None = None
) -> list[Figure]:
    """
    The median of *runs* of each measure, each on an empty server.
    """
    medians: list[Figure] = []
    for name in names:
        found: list[list[Figure]] = []
        for _ in range(1 if name in ONCE else runs):
            async with rig(url, record) as each:
                await each.clear()
                found.append(await MEASURES[name](each, sizes))
        for same in zip(*found, strict=True):
            value = statistics.median(figure.value for figure in same)
            # What must never happen is not averaged away.
            if same[0].bound == 0:
                value = max(figure.value for figure in same)
            medians.append(Figure(same[0].name, value, same[0].unit, same[0].bound, same[0].at_least))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return medians


def machine() -> dict[str, Any]:
    """
    What the figures were made on.
    """
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _commit() -> str:
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def table(figures: Sequence[Figure]) -> str:
    """
    Figures as text for people.
    """
    lines = []
    for figure in figures:
        value = f"{figure.value:,.0f}" if abs(figure.value) >= 100 else f"{figure.value:,.2f}"
        bound = ""
        if figure.bound is not None:
            sign = "≥" if figure.at_least else "≤"
            verdict = "ok" if figure.kept else "MISSED"
            bound = f"{sign} {figure.bound:,g}  {verdict}"
        lines.append(f"{figure.name:58} {value:>12} {figure.unit:10} {bound}")
    return "\n".join(lines)
