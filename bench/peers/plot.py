"""
The figures as bars, one panel for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from bench.peers.report import PROFILES, ROWS, group, short

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.peers.report import Findings, Row

COLUMNS = 3
COLOURS = {
    ("duly", "default"): "#f0a35e",
    ("duly", "best"): "#d95f02",
    ("other", "default"): "#b8c4d6",
    ("other", "best"): "#5b7aa8",
}
LEAST = 0.1  #: where a logarithmic axis begins; none is shown there


def draw(findings: Findings, path: Path) -> None:
    """
    Write *path*, whose ending says what kind of picture it is.
    """
    rows = [
        row
        for row in ROWS
        if any(
            findings.values(system, profile, row.key) for system in findings.systems for profile in PROFILES
        )
    ]
    down = -(-len(rows) // COLUMNS)
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


def _panel(panel: Axes, findings: Findings, row: Row) -> None:
    systems = findings.systems
    panel.set_title(
        f"{group(row)}: {row.title} ({row.unit}, {'more' if row.more else 'less'} is better)",
        loc="left",
        fontsize=8,
    )
    panel.set_xscale("log")
    most = LEAST
    for at, system in enumerate(systems):
        for shift, profile in ((-0.2, "default"), (0.2, "best")):
            found = findings.figure(system, profile, row.key)
            if found is None:
                panel.text(LEAST * 1.1, at + shift, "-", va="center")
                continue
            value = max(found.median, LEAST)
            most = max(most, found.most)
            colour = COLOURS["duly" if system == "duly" else "other", profile]
            panel.barh(at + shift, value, height=0.38, left=0, color=colour)
            panel.plot(
                [max(found.least, LEAST), max(found.most, LEAST)],
                [at + shift] * 2,
                color="#333333",
                linewidth=0.8,
            )
            sign = "≥ " if findings.bounded(system, profile, row) else ""
            panel.text(
                max(found.most, LEAST) * 1.12,
                at + shift,
                sign + short(found.median),
                va="center",
                fontsize=6.5,
            )
    panel.set_xlim(LEAST, most * 6)
    panel.set_yticks(range(len(systems)), [findings.name(system) for system in systems])
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
