"""
``duly stats``: the queue at a glance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.loop import session
from duly.cli.main import COMMANDS, OK
from duly.cli.options import STATES, app_of, as_json, examples, server
from duly.cli.output import ago, jobs_of, plain, print_json, size
from duly.cli.topics import print_topics
from duly.durations import parse_time, say_duration
from duly.options import due_at_ms

if TYPE_CHECKING:
    from duly.glance import StatsDocument


@click.command(
    short_help=COMMANDS["stats"][1], epilog=examples("duly stats", "duly stats --json | jq .totals")
)
@server
@as_json
def stats(as_json: bool) -> int:
    """
    Show jobs by topic and state, what is overdue, who works, who reads events, and the server.

    A topic is overdue by as long as the oldest of its ready jobs has waited for a worker.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        told = ask(app.stats())
        now_ms = ask(ask(app.views()).now_ms())
    if as_json:
        print_json(told)
    else:
        _print(told, now_ms)
    return OK


def _print(told: StatsDocument, now_ms: int) -> None:
    overdue = ["" if about.overdue_ms is None else say_duration(about.overdue_ms) for about in told.topics]
    print_topics(told.topics, overdue=overdue)
    workers, events, server = told.workers, told.events, told.server
    print()
    print("total    " + ", ".join(f"{getattr(told.totals, name):,} {name}" for name in STATES))
    late = f"; due for {say_duration(told.unpromoted_ms)} and not promoted: is a worker running?"
    next_due_ms = None if told.next_due_at is None else due_at_ms(parse_time(told.next_due_at))
    next_due = ago(next_due_ms, now_ms) or "nothing"
    print(f"next due {next_due}{late if told.unpromoted_ms > 5_000 else ''}")
    print(
        f"workers  {workers.live} live, {workers.silent} silent, "
        f"{workers.running} of {workers.slots} slots busy"
    )
    if events is not None:
        behind = ", ".join(f"{name} {lag:,} behind" for name, lag in sorted(events.consumers.items()))
        print(f"events   {events.fill:.0%} of their bound; consumers: {behind or 'none'}")
    if server is not None:
        limit = f" of {size(server.max_memory_bytes)}" if server.max_memory_bytes else ""
        print(
            f"server   {server.name} {server.version}, up {say_duration(server.uptime_s * 1000)}, "
            f"{size(server.memory_bytes)}{limit}, {server.clients} connected"
        )
    if told.quarantined:
        print(f"damaged  {jobs_of(told.quarantined)} in quarantine: duly jobs quarantine ls")
    for run in told.runs:
        counts = ", ".join(f"{count:,} {what}" for what, count in run.counts.items())
        wrong = f"; failed: {plain(run.error)}" if run.error else ""
        print(f"pipeline {run.name} at {run.ended_at}, {say_duration(run.seconds * 1000)}: {counts}{wrong}")
