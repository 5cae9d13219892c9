"""
``duly topics``: list topics; pause, resume, limit and purge them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.allowlist import check_callback
from duly.audit import Change
from duly.cli.audit import note
from duly.cli.loop import session
from duly.cli.main import COMMANDS, OK
from duly.cli.options import STATES, TOPIC, app_of, as_json, examples, server, yes
from duly.cli.output import confirm, console, jobs_of, print_json, print_json_line, print_table
from duly.errors import UsageError
from duly.glance import topic_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.app import Duly
    from duly.cli.loop import Ask
    from duly.glance import TopicDocument
    from duly.views import TopicStats


@click.group(short_help=COMMANDS["topics"][1])
def topics() -> None:
    """
    List topics; pause, resume, limit and purge them.
    """


_topic = click.argument("topic", type=TOPIC)


@topics.command("ls", epilog=examples("duly topics ls", "duly topics ls --json | jq 'select(.paused)'"))
@server
@as_json
def ls(as_json: bool) -> int:
    """
    List topics, with how many jobs are in which state.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        found = [topic_document(about) for about in ask(ask(app.views()).stats()).topics]
    if as_json:
        for about in found:
            print_json_line(about)
    else:
        print_topics(found)
    return OK


def print_topics(found: Sequence[TopicDocument], **more: list[Any]) -> None:
    """
    Topics as a table, with further columns.
    """
    columns = ["topic", *STATES, "paused", "limit", "workers", *more]
    print_table(
        columns,
        [
            (
                about.topic,
                *(getattr(about, name) for name in STATES),
                "paused" if about.paused else "",
                about.limit,
                about.workers,
                *(column[at] for column in more.values()),
            )
            for at, about in enumerate(found)
        ],
    )


def _now(ask: Ask, app: Duly, topic: str) -> TopicStats | None:
    stats = ask(ask(app.views()).stats())
    return next((about for about in stats.topics if about.topic == topic), None)


@topics.command("pause", epilog=examples("duly topics pause mail"))
@_topic
@server
@as_json
def pause(topic: str, as_json: bool) -> int:
    """
    Let no more jobs of TOPIC start; running ones finish, due ones wait.
    """
    app = app_of()
    with session(app) as ask:
        ask(app.pause(topic))
        ask(note(app, Change(action="pause", topic=topic)))
        waiting = _now(ask, app, topic)
    if as_json:
        print_json({"topic": topic, "paused": True})
    else:
        count = waiting.counts["ready"] if waiting else 0
        print(f"{topic} is paused; {jobs_of(count)} ready")
    return OK


@topics.command("resume", epilog=examples("duly topics resume mail"))
@_topic
@server
@as_json
def resume(topic: str, as_json: bool) -> int:
    """
    Let jobs of TOPIC start again.
    """
    app = app_of()
    with session(app) as ask:
        ask(app.resume(topic))
        ask(note(app, Change(action="resume", topic=topic)))
    if as_json:
        print_json({"topic": topic, "paused": False})
    else:
        print(f"{topic} is resumed")
    return OK


@topics.command(
    "set",
    epilog=examples(
        "duly topics set mail --limit 10000",
        "duly topics set mail --limit none",
        "duly topics set order.paid --callback https://example.com/hook",
    ),
)
@_topic
@click.option("--limit", metavar="N|none", help="Refuse jobs beyond this many that wait, with QueueFull.")
@click.option("--callback", metavar="URL|none", help="Deliver jobs there instead of running them.")
@server
@as_json
def set_(topic: str, limit: str | None, callback: str | None, as_json: bool) -> int:
    """
    Limit the backlog of TOPIC, or have its jobs delivered.
    """
    if limit is None and callback is None:
        raise UsageError("say what to set: --limit or --callback")
    if limit is not None and limit != "none" and not limit.isdecimal():
        raise UsageError(f"--limit {limit!r} is neither a whole number nor none")
    app = app_of()
    if callback is not None and callback != "none":
        check_callback(callback, app.settings.limits.callbacks)
    lines = []
    with session(app) as ask:
        if limit is not None:
            most = None if limit == "none" else int(limit)
            ask(app.limit(topic, most))
            ask(note(app, Change(action="limit", topic=topic, details={"limit": most})))
            said = "has no limit" if most is None else f"is limited to {jobs_of(most)} that wait"
            lines.append(f"{topic} {said}")
        if callback is not None:
            url = None if callback == "none" else callback
            ask(app.callback(topic, url))
            # The URL may hold a secret: that there is one is enough.
            ask(note(app, Change(action="callback", topic=topic, details={"callback": url is not None})))
            said = (
                "is run by workers"
                if url is None
                else "is delivered; duly serve and duly work --callbacks do"
            )
            lines.append(f"{topic} {said}")
        about = _now(ask, app, topic)
    if as_json:
        print_json(
            {
                "topic": topic,
                "limit": about.limit if about else None,
                "callback": about.callback if about else None,
            }
        )
    else:
        print("\n".join(lines))
    return OK


@topics.command("purge", epilog=examples("duly topics purge mail", "duly topics purge mail --yes --json"))
@_topic
@yes
@server
@as_json
def purge(topic: str, yes: bool, as_json: bool) -> int:
    """
    Cancel every job of TOPIC that waits, scheduled or ready.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        about = _now(ask, app, topic)
        count = about.counts["scheduled"] + about.counts["ready"] if about else 0
        purged = 0
        if count:
            confirm(f"Cancel {jobs_of(count)} of {topic} that wait?", yes=yes)
            with console(stderr=True).status(f"purging {topic}"):
                purged = ask(app.purge(topic))
            ask(note(app, Change(action="purge", topic=topic, details={"count": purged})))
    if as_json:
        print_json({"topic": topic, "purged": purged})
    else:
        print(f"{jobs_of(purged)} of {topic} cancelled")
    return OK
