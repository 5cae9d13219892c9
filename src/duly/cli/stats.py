"""
``duly stats``: the queue at a glance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.cli.loop import session
from duly.cli.main import COMMANDS, OK
from duly.cli.options import STATES, app_of, as_json, examples, server
from duly.cli.output import ago, print_json, size
from duly.cli.topics import document, print_topics
from duly.durations import say_duration, say_time
from duly.feed import Feed
from duly.job import moment

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.views import Stats


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
        found, more = ask(_ask(app))
    told = _document(app, found, more)
    if as_json:
        print_json(told)
    else:
        _print(told, found, more)
    return OK


async def _ask(app: Duly) -> tuple[Stats, dict[str, Any]]:
    views = await app.views()
    found = await views.stats()
    now_ms = await views.now_ms()
    overdue = []
    for about in found.topics:
        since = await views.waiting_since(about.topic) if about.counts["ready"] else None
        overdue.append(None if since is None else max(0, now_ms - since))
    feed = Feed(await app.store())
    fill = max([await feed.fill(shard) for shard in range(app.settings.shards)])
    return found, {"now_ms": now_ms, "overdue": overdue, "lags": await feed.lags(), "fill": fill}


def _document(app: Duly, found: Stats, more: dict[str, Any]) -> dict[str, Any]:
    facts = app.facts
    assert facts is not None  # noqa: S101  # asked when the app connected
    next_due = moment(found.next_due_ms)
    return {
        "namespace": app.settings.namespace,
        "topics": [
            document(about) | {"overdue_ms": overdue}
            for about, overdue in zip(found.topics, more["overdue"], strict=True)
        ],
        "totals": {name: sum(about.counts[name] for about in found.topics) for name in STATES},
        "next_due_at": say_time(next_due) if next_due else None,
        "unpromoted_ms": found.overdue_ms,
        "workers": {
            "live": sum(worker["live"] for worker in found.workers),
            "silent": sum(not worker["live"] for worker in found.workers),
            "running": sum(worker.get("running", 0) for worker in found.workers if worker["live"]),
            "slots": sum(worker.get("concurrency", 0) for worker in found.workers if worker["live"]),
        },
        "events": {"fill": round(more["fill"], 4), "consumers": more["lags"]},
        "server": {
            "name": facts.name,
            "version": ".".join(str(part) for part in facts.version),
            "uptime_s": facts.uptime_s,
            "memory_bytes": facts.memory_bytes,
            "max_memory_bytes": facts.max_memory_bytes or None,
            "clients": facts.clients,
            "warnings": list(facts.warnings),
        },
    }


def _print(told: dict[str, Any], found: Stats, more: dict[str, Any]) -> None:
    overdue = ["" if ms is None else say_duration(ms) for ms in more["overdue"]]
    print_topics(found.topics, overdue=overdue)
    totals, workers, events, server = (told[name] for name in ("totals", "workers", "events", "server"))
    print()
    print("total    " + ", ".join(f"{count:,} {name}" for name, count in totals.items()))
    late = f"; due for {say_duration(found.overdue_ms)} and not promoted: is a worker running?"
    next_due = ago(found.next_due_ms, more["now_ms"]) or "nothing"
    print(f"next due {next_due}{late if found.overdue_ms > 1_000 else ''}")
    print(
        f"workers  {workers['live']} live, {workers['silent']} silent, "
        f"{workers['running']} of {workers['slots']} slots busy"
    )
    behind = ", ".join(f"{name} {lag:,} behind" for name, lag in sorted(events["consumers"].items()))
    print(f"events   {events['fill']:.0%} of their bound; consumers: {behind or 'none'}")
    limit = f" of {size(server['max_memory_bytes'])}" if server["max_memory_bytes"] else ""
    print(
        f"server   {server['name']} {server['version']}, up {say_duration(server['uptime_s'] * 1000)}, "
        f"{size(server['memory_bytes'])}{limit}, {server['clients']} connected"
    )
