"""
``duly dead``: what dead jobs died of, and run them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.loop import session
from duly.cli.main import COMMANDS, OK
from duly.cli.options import app_of, as_json, examples, server, topic, yes
from duly.cli.output import ago, print_json_line, print_table
from duly.cli.steer import REQUEUE, many
from duly.dead import deaths, error_signature
from duly.durations import say_time
from duly.errors import UsageError
from duly.job import JobState, moment
from duly.select import Selection

if TYPE_CHECKING:
    from duly.job import Job


@click.group(short_help=COMMANDS["dead"][1])
def dead() -> None:
    """
    What dead jobs died of, and run them again.
    """


@dead.command("ls", epilog=examples("duly dead ls", "duly dead ls --topic mail --json"))
@topic
@server
@as_json
def ls(topics: tuple[str, ...], as_json: bool) -> int:
    """
    Count dead jobs by topic and error, the most frequent first.

    Numbers and ids in a message are shown as #, so that its like are counted together.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        views = ask(app.views())
        found = ask(deaths(views, topics or None))
        now_ms = ask(views.now_ms())
    if as_json:
        for death in found:
            first, last = moment(death.first_ms), moment(death.last_ms)
            print_json_line(
                {
                    "topic": death.topic,
                    "error": death.error,
                    "count": death.count,
                    "first_at": say_time(first) if first else None,
                    "last_at": say_time(last) if last else None,
                    "example": death.example,
                }
            )
        return OK
    print_table(
        ["topic", "count", "error", "first", "last", "example"],
        [
            (
                death.topic,
                death.count,
                death.error,
                ago(death.first_ms, now_ms),
                ago(death.last_ms, now_ms),
                death.example,
            )
            for death in found
        ],
    )
    return OK


@dead.command(
    "requeue",
    epilog=examples(
        "duly dead requeue --topic mail --error 'TimeoutError'",
        "duly dead requeue --all --yes",
    ),
)
@topic
@click.option("--error", metavar="TEXT", help="Only jobs whose line in `dead ls` contains this.")
@click.option("--all", "everything", is_flag=True, help="Every dead job.")
@yes
@server
@as_json
def requeue(topics: tuple[str, ...], error: str | None, everything: bool, yes: bool, as_json: bool) -> int:
    """
    Run dead jobs again, as new revisions with all their attempts ahead; first they are counted, and you are
    asked.
    """
    if everything == bool(topics or error):
        raise UsageError("say either --all, or --topic, --error or both")
    part = (error or "").casefold()

    def matches(job: Job) -> bool:
        return part in error_signature(job).casefold()

    app = app_of(existing=True)
    with session(app) as ask:
        selection = Selection((JobState.dead,), topics or None)
        return many(REQUEUE, ask, app, selection, sure=yes, as_json=as_json, matches=matches)
