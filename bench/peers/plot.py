"""
The figures as bars, one panel for each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from bench.peers.report import PROFILES, ROWS, group, short

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.peers.arithmetic import Figure
    from bench.peers.report import Findings, Row

COLUMNS = 3
#: Of duly or another system, and by profile.
COLOURS = {
    (True, "default"): "#f0a35e",
    (True, "best"): "#d95f02",
    (False, "default"): "#b8c4d6",
    (False, "best"): "#5b7aa8",
}


def draw(findings: Findings, path: Path) -> None:
    """
    Write *path*, whose ending says what kind of picture it is.
    """
    rows = [row for row in ROWS if row.unit != "jobs" and _figures(findings, row)]
    down = max(1, -(-len(rows) // COLUMNS))
    systems = findings.systems
    with mpl.rc_context({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "duly"}):
        canvas = Canvas(
            figsize=(5.2 * COLUMNS, (0.9 + 0.34 * len(systems)) * down + 0.8), layout="constrained"
        )
        panels = canvas.subplots(down, COLUMNS, squeeze=False).flatten()
        for row, panel in zip(rows, panels, strict=False):
            _panel(panel, findings, row)
        for panel in panels[len(rows) :]:
            panel.set_axis_off()
        about = findings.document["about"]
        canvas.suptitle(
            f"duly beside others: {about['date']}, commit {about['machine']['commit']}, "
            f"{about['machine']['cores']} cores, {about['server']}, AOF everysec; "
            f"median, least and most of rounds: {about['rounds']}\n"
            "light: default settings; dark: best documented settings; axes are logarithmic"
        )
        canvas.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _figures(findings: Findings, row: Row) -> dict[tuple[str, str], Figure]:
    pairs = [(system, profile) for system in findings.systems for profile in PROFILES]
    found = {pair: findings.figure(*pair, row.key) for pair in pairs}
    return {pair: one for pair, one in found.items() if one is not None}


def _panel(panel: Axes, findings: Findings, row: Row) -> None:
    systems, found = findings.systems, _figures(findings, row)
    panel.set_title(
        f"{group(row)}: {row.title} ({row.unit}, {'more' if row.more else 'less'} is better)",
        loc="left",
        fontsize=8,
    )
    panel.set_xscale("log")
    # From the power of ten below the least figure: a logarithmic axis has no zero to begin with.
    least = min((one.least for one in found.values() if one.least > 0), default=1.0)
    left = 10.0 ** math.floor(math.log10(least / 1.5))
    panel.set_xlim(left, 6 * max(left, *(one.most for one in found.values())))
    for at, system in enumerate(systems):
        for shift, profile in zip((-0.2, 0.2), PROFILES, strict=True):
            y, one = at + shift, found.get((system, profile))
            if one is None:
                panel.text(left * 1.1, y, "-", va="center")
                continue
            panel.barh(y, one.median, height=0.38, color=COLOURS[system == "duly", profile])
            panel.plot([one.least, one.most], [y, y], color="#333333", linewidth=0.8)
            sign = "≥ " if findings.bounded(system, profile, row) else ""
            end = 1.12 * max(one.most, left)
            panel.text(end, y, sign + short(one.median), va="center", fontsize=6.5)
    panel.set_yticks(range(len(systems)), [findings.name(system) for system in systems])
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
