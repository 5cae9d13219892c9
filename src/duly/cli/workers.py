"""
``duly workers``: who works, on what.
"""

from __future__ import annotations

import click

from duly.cli.loop import session
from duly.cli.main import COMMANDS, OK
from duly.cli.options import app_of, as_json, examples, server
from duly.cli.output import print_json_line, print_table
from duly.durations import say_duration


@click.group(short_help=COMMANDS["workers"][1])
def workers() -> None:
    """
    Who works, on what.
    """


@workers.command("ls", epilog=examples("duly workers ls", "duly workers ls --json | jq 'select(.live)'"))
@server
@as_json
def ls(as_json: bool) -> int:
    """
    List workers: those that live, and those that fell silent within the last day.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        views = ask(app.views())
        found = ask(views.workers(ask(views.now_ms())))
    found.sort(key=lambda worker: (not worker["live"], worker["worker"]))
    if as_json:
        for worker in found:
            print_json_line(worker)
        return OK
    print_table(
        ["worker", "heard", "running", "slots", "claimed", "finished", "topics"],
        [
            (
                worker["worker"],
                f"{say_duration(worker['silent_ms'])} ago"
                if worker["live"]
                else f"silent for {say_duration(worker['silent_ms'])}",
                worker.get("running"),
                worker.get("concurrency"),
                worker.get("claimed"),
                worker.get("finished"),
                ", ".join(worker.get("topics", ())),
            )
            for worker in found
        ],
    )
    return OK
