"""
The queue on a terminal, in whatever room there is.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from duly.figures import amount, bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from duly.top.snapshot import Snapshot

WIDE = 90  #: columns from which on two blocks stand side by side
TALL = 36  #: lines from which on those blocks have all their rows
AROUND = 16  #: lines that are always there: headings, sums, and what lies between
MAIN_VERBS = ("enqueued", "claimed", "acked")  #: shown also where nothing happens
OVERDUE_MS = 1_000  #: waiting longer than this is worth a colour


def render(
    snapshot: Snapshot, width: int, height: int | None = None, *, keys: bool = False
) -> RenderableType:
    """
    One picture; with a *height*, lists are cut so that it fits.
    """
    wide = width >= WIDE
    middle_rows = 10 if height is None or height >= TALL else 5
    lists = [len(snapshot.topics), len(snapshot.workers), len(snapshot.failures)]
    taken = AROUND + (middle_rows + 2 if wide else 0)
    topics, workers, failures = _share(None if height is None else height - taken, lists)
    rates, due = (
        _rates(snapshot, middle_rows),
        _due(snapshot, middle_rows, 24 if wide else max(8, width - 24)),
    )
    side = Table.grid(padding=(0, 6, 0, 0))
    side.add_row(rates, due)
    below = (
        _topics(snapshot, topics, wide=wide),
        Text(),
        _workers(snapshot, workers, wide=wide),
        Text(),
        _failures(snapshot, failures),
    )
    return Group(
        _head(snapshot, width, keys=keys),
        Text(),
        _summary(snapshot),
        Text(),
        # Where there is little room, what hangs over the lower edge is what matters least.
        *((side, Text(), *below) if wide else (*below, Text(), rates, Text(), due)),
    )


def _share(room: int | None, wanted: Sequence[int]) -> list[int]:
    """
    Rows for each of some lists: what they want if there is room, else a fair part of it, at least one.
    """
    if room is None:
        return list(wanted)
    given = [min(1, want) for want in wanted]
    left = room - sum(given)
    while left > 0 and any(have < want for have, want in zip(given, wanted, strict=True)):
        for at, want in enumerate(wanted):
            if left > 0 and given[at] < want:
                given[at] += 1
                left -= 1
    return given


def printable(text: str) -> str:
    """
    Text that others wrote, such as an error: what would steer the terminal is spelt out.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _head(snapshot: Snapshot, width: int, *, keys: bool) -> Text:
    at = datetime.fromtimestamp(snapshot.at_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    text = Text("duly top", style="bold cyan", no_wrap=True, overflow="ellipsis")
    text.append(f"  {snapshot.namespace} at {snapshot.place}  {at}", style="not bold default")
    if keys and width >= WIDE:
        text.append("  q quits", style="dim not bold")
    if not snapshot.reached:
        text.append(f"\nserver away for {snapshot.away_s:.0f} s", style="bold red")
        text.append(f": {printable(snapshot.problem)}" if snapshot.problem else "", style="red not bold")
    return text


def _summary(snapshot: Snapshot) -> Group:
    late = snapshot.lateness
    first = Text("lateness  ", style="bold", no_wrap=True, overflow="ellipsis")
    for name, value in (("p50", late.p50_ms), ("p99", late.p99_ms), ("max", late.max_ms)):
        first.append(f"{name} ", style="not bold")
        first.append(f"{amount(value)}  ", style="cyan not bold")
    first.append(f"{late.runs:,} runs in the last minute", style="dim not bold")
    if snapshot.sampled:
        first.append(", sampled", style="dim not bold")
    second = Text("overdue   ", style="bold", no_wrap=True, overflow="ellipsis")
    if snapshot.overdue_ms > 0:
        style = "bold red" if snapshot.overdue_ms >= OVERDUE_MS else "not bold"
        second.append(f"oldest waits {amount(snapshot.overdue_ms)}", style=style)
        second.append(f"  {snapshot.overdue_topic}", style="not bold")
    else:
        second.append("nothing", style="dim not bold")
    third = Text("jobs      ", style="bold", no_wrap=True, overflow="ellipsis")
    for state, count in snapshot.totals().items():
        third.append(f"{state} ", style="not bold")
        colour = "red" if state == "dead" else "cyan"
        third.append(f"{count:,}  ", style=f"not bold {colour}" if count else "not bold dim")
    return Group(first, second, third)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, name in enumerate(columns):
        table.add_column(
            name, justify="left" if at == 0 else "right", no_wrap=True, overflow="ellipsis", min_width=1
        )
    return table


def _rates(snapshot: Snapshot, rows: int) -> Table:
    table = _table("verb", "per second", "last minute")
    rates = {rate.verb: rate for rate in snapshot.rates}
    for verb in list(dict.fromkeys((*MAIN_VERBS, *rates)))[:rows]:
        rate = rates.get(verb)
        if rate is None:
            table.add_row(verb, Text("0", style="dim"), Text("0", style="dim"))
        else:
            table.add_row(verb, f"{rate.per_s:,.1f}", f"{rate.last_minute:,}")
    return table


def _due(snapshot: Snapshot, rows: int, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("due in", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=width)
    table.add_column("jobs", justify="right", no_wrap=True)
    most = max(snapshot.due, default=0)
    for minute, count in enumerate(snapshot.due[:rows], 1):
        table.add_row(
            f"{minute} min",
            Text(bar(count, most, width), style="cyan"),
            Text(f"{count:,}", style="" if count else "dim"),
        )
    return table


def _topics(snapshot: Snapshot, rows: int, *, wide: bool) -> RenderableType:
    if not snapshot.topics:
        return Text("no topics yet: nothing was ever enqueued here", style="dim")
    states = ("scheduled", "ready", "running", "dead", "workers")
    table = _table("topic", *(states if wide else ("sched", "ready", "run", "dead", "work")))
    for topic in snapshot.topics[:rows]:
        name = Text(topic.topic)
        if topic.paused:
            name.append(" paused", style="yellow")
        alone = topic.ready and not topic.workers and not topic.paused
        table.add_row(
            name,
            *(_count(getattr(topic, state)) for state in ("scheduled", "ready", "running")),
            _count(topic.dead, "red"),
            Text("none", style="bold red") if alone else _count(topic.workers),
        )
    return _with_rest(table, len(snapshot.topics) - rows, "topics")


def _workers(snapshot: Snapshot, rows: int, *, wide: bool) -> RenderableType:
    if not snapshot.workers:
        return Text("no workers", style="yellow")
    table = _table("worker", "pid", *(("host",) if wide else ()), "running", "last beat")
    for worker in snapshot.workers[:rows]:
        beat = Text(
            f"{amount(worker.silent_ms)} ago" if worker.live else f"silent for {amount(worker.silent_ms)}"
        )
        beat.stylize("" if worker.live else "bold red")
        table.add_row(
            printable(worker.worker),
            str(worker.pid),
            *((printable(worker.host),) if wide else ()),
            f"{worker.running}/{worker.concurrency}",
            beat,
        )
    return _with_rest(table, len(snapshot.workers) - rows, "workers")


def _failures(snapshot: Snapshot, rows: int) -> RenderableType:
    if not snapshot.failures:
        return Text("no failures in the last minute", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    # What gives way where there is little room is the error.
    table.add_column("failures", justify="right", no_wrap=True, min_width=8)
    table.add_column("last", justify="right", no_wrap=True, min_width=9)
    table.add_column("topic", no_wrap=True, min_width=12)
    table.add_column("error", no_wrap=True, overflow="ellipsis")
    for failure in snapshot.failures[:rows]:
        table.add_row(
            Text(f"{failure.count:,}", style="red"),
            f"{amount(failure.ago_ms)} ago",
            failure.topic,
            printable(failure.error) or "no reason given",
        )
    return _with_rest(table, len(snapshot.failures) - rows, "errors")


def _count(count: int, style: str = "") -> Text:
    return Text(f"{count:,}", style=style if count else "dim")


def _with_rest(table: Table, rest: int, what: str) -> RenderableType:
    return Group(table, Text(f"and {rest:,} more {what}", style="dim")) if rest > 0 else table
