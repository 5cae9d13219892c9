"""
How the demonstration ended: lateness, a histogram, and the proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from duly.figures import amount, histogram, percentile, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from duly.demo.scene import Played


def lateness(values: Sequence[float]) -> dict[str, Any]:
    """
    The figures of one group of jobs, in milliseconds.
    """
    figures: dict[str, float | None] = {
        "p50_ms": percentile(values, 0.5),
        "p90_ms": percentile(values, 0.9),
        "p99_ms": percentile(values, 0.99),
        "max_ms": max(values, default=None),
    }
    rounded = {name: None if value is None else round(value, 3) for name, value in figures.items()}
    return {"jobs": len(values), **rounded}


def document(played: Played) -> dict[str, Any]:
    """
    The summary for programs.
    """
    proof, killed = played.proof, played.killed
    return {
        "ok": played.shown,
        "submitted": proof.submitted,
        "completed": proof.completed,
        "succeeded": played.counts.get("succeeded", 0),
        "lost": list(proof.lost),
        "early": list(proof.early),
        "completed_twice": list(proof.twice),
        "unknown": list(proof.unknown),
        "started_again": list(proof.again),
        "killed": None
        if killed is None
        else {"worker": killed.name, "pid": killed.pid, "running": killed.running},
        "lateness": {"on_time": lateness(proof.on_time_ms), "recovered": lateness(proof.recovered_ms)},
        "workers": played.plan.workers,
        "within_s": played.plan.within_s,
        "lease_s": played.plan.lease_s,
        "took_s": round(played.took_s, 3),
        "report": None if played.page is None else str(played.page),
    }


def render(played: Played) -> RenderableType:
    """
    The summary for people.
    """
    proof = played.proof
    return Group(
        Text("How late jobs started", style="bold"),
        _lateness(played),
        Text(
            f"Recovered jobs wait for the lease of {amount(played.plan.lease_s * 1000)} to run out, then a "
            "second, on purpose.",
            style="dim",
        ),
        Text(),
        *(Text(line) for line in histogram(_bars(proof.on_time_ms))),
        Text(),
        Text("What the handlers wrote down, outside the store", style="bold"),
        _proof(played),
        Text(),
        _verdict(played),
        *_page(played),
    )


def _page(played: Played) -> list[Text]:
    """
    Where the report is; it stands on one line, so that it can be clicked or copied.
    """
    if played.page is not None:
        return [Text(f"How late, hour by hour, as a page: {played.page}", no_wrap=True, overflow="ignore")]
    return [Text(played.no_page, style="dim")] if played.no_page else []


def _bars(values: Sequence[float]) -> list[tuple[str, int]]:
    rows = spread(values)
    while len(rows) > 1 and not rows[-1][1]:
        rows.pop()
    return rows


def _lateness(played: Played) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("")
    for name in ("jobs", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    groups = [("on time", played.proof.on_time_ms), ("recovered", played.proof.recovered_ms)]
    for name, values in groups:
        found = lateness(values)
        table.add_row(name, str(found.pop("jobs")), *(amount(value) for value in found.values()))
    return table


def _proof(played: Played) -> Table:
    proof = played.proof
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, count, wrong in (
        ("submitted", proof.submitted, ()),
        ("completed", proof.completed, ()),
        ("lost", len(proof.lost), proof.lost),
        ("early", len(proof.early), proof.early),
        ("completed twice", len(proof.twice), proof.twice),
        ("started again after the kill", len(proof.again), ()),
    ):
        named = ", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else "")
        table.add_row(name, str(count), Text(named, style="red"))
    return table


def _verdict(played: Played) -> Text:
    if played.shown:
        return Text("Every job ran to its end once, although a worker was killed.", style="bold green")
    proof = played.proof
    if proof.holds and played.killed is None:
        return Text("No worker could be caught while it ran a job, so nothing was shown.", style="bold red")
    if proof.holds:
        return Text(
            f"The ledger is complete, but the store counts {played.counts.get('succeeded', 0)} successes.",
            style="bold red",
        )
    return Text("The proof failed: see the jobs named above.", style="bold red")
