"""
Run measures several times, take medians, and say on what machine.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.bench.measures import MEASURES
from duly.bench.rig import rig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.bench.figure import Figure
    from duly.bench.measures import Sizes

#: Hardly different from run to run.
ONCE = {"idle", "memory"}


async def measure(
    names: Sequence[str], sizes: Sizes, runs: int, url: str | None, record: str | None = None
) -> list[Figure]:
    """
    The median of *runs* of each measure, each on an empty server.
    """
    found: dict[str, list[list[Figure]]] = {name: [] for name in names}
    # In turns, so that a slow minute of the machine falls on one run of each and not on all runs of one.
    for turn in range(runs):
        for name in names:
            if turn == 0 or name not in ONCE:
                async with rig(url, record) as each:
                    await each.clear()
                    found[name].append(await MEASURES[name](each, sizes))
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [_median(same) for name in names for same in zip(*found[name], strict=True)]


def _median(same: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in same]
    # What must never happen is not averaged away.
    value = max(values) if same[0].bound == 0 else statistics.median(values)
    return replace(same[0], value=value, least=min(values), most=max(values))


def document(figures: Sequence[Figure], **about: Any) -> dict[str, Any]:
    """
    Figures for programs, with what they were made on and *about* what else.
    """
    return {
        "machine": machine() | about,
        "figures": [asdict(figure) | {"kept": figure.kept} for figure in figures],
    }


def write(path: Path, figures: Sequence[Figure], **about: Any) -> None:
    """
    Write them down.
    """
    path.write_text(json.dumps(document(figures, **about), indent=2, ensure_ascii=False) + "\n", "utf-8")


def machine(tree: Path = Path(__file__).parent) -> dict[str, Any]:
    """
    What the figures of *tree* were made on.
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
        "commit": _commit(tree),
    }


def _commit(tree: Path) -> str:
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(describe, cwd=tree, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def table(figures: Sequence[Figure]) -> str:
    """
    Figures as text for people.
    """
    lines = []
    for figure in figures:
        spread = ""
        if figure.least is not None and figure.most is not None and figure.least < figure.most:
            spread = f"({_short(figure.least)} to {_short(figure.most)})"
        bound = ""
        if figure.bound is not None:
            sign = "≥" if figure.at_least else "≤"
            verdict = "ok" if figure.kept else "MISSED"
            bound = f"{sign} {figure.bound:,g}  {verdict}"
        lines.append(
            f"{figure.name:58} {_short(figure.value):>12} {figure.unit:10} {spread:20} {bound}".rstrip()
        )
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
