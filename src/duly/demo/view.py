"""
The demonstration on a terminal, while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from duly.figures import amount, percentile

if TYPE_CHECKING:
    from rich.console import RenderableType

    from duly.demo.frame import Frame

NEWS = 6  #: lines of news that are shown

STYLES = {"starting": "yellow", "working": "green", "killed": "bold red", "ended": "dim"}


def render(frame: Frame) -> RenderableType:
    """
    One moment, to be drawn over the one before.
    """
    return Panel(
        Group(
            _progress(frame),
            Text(),
            _states(frame),
            _lateness(frame),
            Text(),
            _workers(frame),
            Text(),
            *(Text(line, overflow="ellipsis", no_wrap=True) for line in _news(frame)),
        ),
        title="duly demo",
        title_align="left",
        subtitle="Ctrl-C ends it and leaves nothing behind",
        subtitle_align="right",
        border_style="cyan",
        padding=(1, 2),
    )


def _progress(frame: Frame) -> RenderableType:
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(
        Text(f"{frame.ended}/{frame.total} jobs", style="bold"),
        ProgressBar(total=max(1, frame.total), completed=frame.ended),
        Text(f"{frame.elapsed_s:.1f} s"),
    )
    return row


def _states(frame: Frame) -> Text:
    text = Text("jobs      ", style="bold")
    for state, style in (
        ("scheduled", "cyan"),
        ("ready", "yellow"),
        ("running", "blue"),
        ("succeeded", "green"),
        ("dead", "red"),
    ):
        count = frame.counts.get(state, 0)
        text.append(f"{state} ", style="not bold")
        text.append(f"{count:<5}", style=style if count else "dim")
    return text


def _lateness(frame: Frame) -> Text:
    text = Text("lateness  ", style="bold")
    late = frame.late_ms
    for name, value in (
        ("p50", percentile(late, 0.5)),
        ("p99", percentile(late, 0.99)),
        ("max", max(late, default=None)),
    ):
        text.append(f"{name} ", style="not bold")
        text.append(f"{amount(value):<10}", style="cyan")
    return text


def _workers(frame: Frame) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("worker", no_wrap=True)
    for name in ("pid", "running", "finished"):
        table.add_column(name, justify="right")
    table.add_column("state", no_wrap=True)
    for worker in frame.workers:
        table.add_row(
            worker.name,
            str(worker.pid),
            str(worker.running),
            str(worker.finished),
            Text(worker.state, style=STYLES[worker.state]),
        )
    return table


def _news(frame: Frame) -> list[str]:
    # As many lines as there will be, so that the picture does not grow.
    return [*frame.news[-NEWS:], *[""] * (NEWS - len(frame.news))]
