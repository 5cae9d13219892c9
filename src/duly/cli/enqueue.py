"""
``duly enqueue``: one job.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from duly.cli import options
from duly.cli.loop import session
from duly.cli.main import COMMANDS, NO, OK
from duly.cli.options import TOPIC, app_of, as_json, examples, server
from duly.cli.output import print_json, print_json_line, say
from duly.codec import check_json, encode
from duly.durations import say_time
from duly.errors import UsageError
from duly.newjob import NewJob
from duly.options import COUNT, DURATION, ID, NAME, OBJECT, OPTIONS, POSITIVE_DURATION, TIME, URL, WORD

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from duly.handle import JobHandle
    from duly.options import Kind

F = TypeVar("F", bound="Callable[..., Any]")

NO_ARGUMENTS = b"{}"

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=[-+.\d]+|[A-Za-z_]\w*=(?:true|false|null)")  #: as of a shell


def read_payload(text: str | bytes | None, what: str = "PAYLOAD") -> bytes:
    """
    The payload as it was written, if it is JSON.

    Raises:
        UsageError: It is none.
    """
    if text is None:
        return NO_ARGUMENTS
    try:
        data = text.encode() if isinstance(text, str) else text
        check_json(data, what)
    except (ValueError, UsageError) as error:
        hint = ""
        if isinstance(text, str) and text.isalnum():
            hint = f"; text needs quotes of its own: '\"{text}\"'"
        elif isinstance(text, str) and _ASSIGNMENT.fullmatch(text):
            name, _, value = text.partition("=")
            hint = f"; arguments are a JSON object: '{{\"{name}\": {value}}}'"
        told = error if isinstance(error, UsageError) else f"{what} is no JSON: {error}"
        raise UsageError(f"{told}{hint}") from None
    return data.strip()


def pairs(option: str, words: tuple[str, ...]) -> dict[str, Any] | None:
    """
    ``key=value``, some of them: each value as JSON where it is JSON, else as text.

    Raises:
        UsageError: One of them is no pair, or a key is there twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {word!r} is no pair: write {option} name=value")
        if name in found:
            raise UsageError(f"{option} {name} is said twice")
        try:
            found[name] = msgspec.json.decode(text.encode())
        except (ValueError, RecursionError):
            found[name] = text
    return found or None


#: How each kind of option is written on a command line.
_FLAGS: dict[Kind, dict[str, Any]] = {
    ID: {"metavar": "ID"},
    NAME: {"metavar": "NAME"},
    URL: {"metavar": "URL"},
    DURATION: {"type": options.DURATION},
    POSITIVE_DURATION: {"type": options.DURATION},
    TIME: {"type": options.TIME},
    COUNT: {"type": click.IntRange(min=1), "metavar": "N"},
    WORD: {"show_default": True},
    OBJECT: {
        "multiple": True,
        "metavar": "NAME=VALUE",
        "callback": lambda _, option, words: pairs(option.opts[0], words),
    },
}


def job_options(command: F) -> F:
    """
    Take the options of a job, by their names.
    """
    for option in reversed([option for option in OPTIONS if option.flag]):
        more = dict(_FLAGS[option.kind])
        if option.words:
            more["type"] = click.Choice(option.words)
        how = "repeatable" if option.kind is OBJECT else option.kind.how
        text = f"{option.meaning[:1].upper()}{option.meaning[1:]}{how and f' ({how})'}."
        flag = f"--{option.name.replace('_', '-')}"
        command = click.option(flag, option.name, default=option.default, help=text, **more)(command)
    return command


@click.command(
    short_help=COMMANDS["enqueue"][1],
    epilog=examples(
        "duly enqueue mail.welcome --arg user_id=42 --delay 1h30m",
        'duly enqueue report \'{"day": "2026-01-31"}\' --due-at 2026-02-01T06:00:00+01:00',
        "echo '[1, 2]' | duly enqueue sum - --wait 10",
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("payload", required=False)
@click.option(
    "--arg", "args", multiple=True, metavar="NAME=VALUE", help="One argument of the handler; repeatable."
)
@job_options
@click.option(
    "--wait", type=options.DURATION, metavar="TIME", help="Wait for its end so long, print the result."
)
@server
@as_json
def enqueue(
    topic: str,
    payload: str | None,
    args: tuple[str, ...],
    wait: timedelta | None,
    as_json: bool,
    **said: Any,
) -> int:
    """
    Send one job of TOPIC.

    PAYLOAD is JSON, or - to read it from stdin. An object holds the handler's arguments by name, anything
    else is its only argument; without it there are none. With --arg, a value is JSON where it can be read as
    such, else text.
    """
    named = pairs("--arg", args)
    if named is not None and payload is not None:
        raise UsageError("say either PAYLOAD or --arg, not both")
    app = app_of()
    if named is not None:
        data = encode(named, what="--arg", limit=app.settings.payload_limit)
    elif payload == "-":
        data = read_payload(sys.stdin.buffer.read(), "what stdin says")
    else:
        data = read_payload(payload)
    job: NewJob[Any] = NewJob(topic, data)
    job = job.options(**said)
    job.order(app.settings.limits)  # what is wrong with it is said before a server is looked for
    with session(app) as ask:
        handle = ask(app.enqueue(job) if wait is None else app.enqueue_awaited(job))
        told = _told(handle)
        if wait is None:
            if as_json:
                print_json(told)
            else:
                print(f"{handle.key} {told['outcome']}: {told['state']}, due {told['due_at']}")
            return OK
        say(f"{handle.key} {told['outcome']}: {told['state']}, due {told['due_at']}")
        try:
            result = ask(handle.result(timeout=wait))
        except TimeoutError as error:
            say(f"duly: {error}; the job stays there: duly jobs show {handle.key}")
            return NO
        if as_json:
            print_json(told | {"result": result})
        else:
            print_json_line(result)
    return OK


def _told(handle: JobHandle[Any]) -> dict[str, Any]:
    placed = handle.placed
    assert placed is not None, handle  # noqa: S101  # it was just sent
    return {
        "topic": handle.topic,
        "id": handle.id,
        "outcome": placed.word,
        "revision": placed.revision,
        "state": placed.state.name,
        "due_at": say_time(handle.due_at) if handle.due_at else None,
    }
