"""
``duly replies``: what became of jobs that were sent with a reply_to.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from duly.cli.loop import run
from duly.cli.main import COMMANDS, OK
from duly.cli.options import Parsed, app_of, as_json, examples, server
from duly.cli.output import plain, print_json_line, say
from duly.cli.signals import until_signal
from duly.documents import ended_fields_of, error_line, value_of
from duly.job import JobState, check_topic
from duly.replies import LEASE_S, LONG_S, MAX_TAKEN

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.replies import Reply

QUEUE = Parsed("queue", lambda text: check_topic(text, "reply queue"))


@click.command(
    short_help=COMMANDS["replies"][1],
    epilog=examples(
        "duly enqueue report --reply-to reports && duly replies reports --ack",
        "duly replies reports --follow --ack --json | jq .job.result",
    ),
)
@click.argument("name", type=QUEUE)
@click.option("--follow", is_flag=True, help="Wait for more until Ctrl-C.")
@click.option("--ack", is_flag=True, help="Forget each reply once it is printed.")
@server
@as_json
def replies(name: str, follow: bool, ack: bool, as_json: bool) -> int:
    """
    Print the replies of the queue NAME: what became of jobs sent with --reply-to NAME.

    They come oldest first of each shard.

    While they are printed no other reader is given them. Without --ack they come again after 30 seconds.
    """
    return run(until_signal(_print(app_of(existing=True), name, follow=follow, ack=ack, as_json=as_json)))


async def _print(app: Duly, name: str, *, follow: bool, ack: bool, as_json: bool) -> int:
    count = 0
    try:
        queue = await app.reply_queue()
        while True:
            taken = await queue.take(name, limit=MAX_TAKEN, wait_s=LONG_S if follow else 0.0)
            if taken.dropped:
                say(f"{taken.dropped} replies of {name} were dropped unread: too many, or older than a day.")
            for reply in taken.replies:
                _print_reply(reply, as_json=as_json)
            if ack and taken.replies:
                # What was printed must have left before it is forgotten.
                sys.stdout.flush()
                await queue.ack(name, [reply.id for reply in taken.replies])
            count += len(taken.replies)
            if not follow and not taken.replies:
                break
    finally:
        await app.aclose()
    if not ack and count:
        say(f"They come again after {LEASE_S} seconds; with --ack they are forgotten.")
    return OK


def _print_reply(reply: Reply, *, as_json: bool) -> None:
    job = reply.job
    if as_json:
        document: dict[str, Any] = {"id": reply.id, "job": ended_fields_of(job)}
        print_json_line(document)
        return
    said = error_line(job)
    if job.state is JobState.succeeded:
        value = value_of(job.outcome)
        said = "" if value is None else job.outcome.decode(errors="replace")
    print(plain(f"{job.key} {job.state.name}: {said}" if said else f"{job.key} {job.state.name}"))
