"""
Options that many commands share, what they are read into, and the app they make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from duly.app import Duly
    from duly.job import JobKey
    from duly.record.target import Target
    from duly.where import Where

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic only in later versions

F = TypeVar("F", bound="Callable[..., Any]")

STATES = ("scheduled", "ready", "running", "succeeded", "dead", "cancelled")

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def examples(*lines: str) -> str:
    """
    What stands at the end of a help text, each line as it is.
    """
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def server(command: F) -> F:
    """
    Say which queue: ``url``, ``data``, ``namespace`` and ``record`` become ``flags``, for `app_of`.
    """
    return _server(command, "Of a server of your own, or of duly serve.")


def own_server(command: F) -> F:
    """
    Say which queue, to a command that needs its server: over HTTP it is refused.
    """
    return _server(command, "Of a server of your own; not of duly serve.")


def _server(command: F, about_url: str) -> F:
    for option in (
        click.option(
            "--record",
            metavar="URL",
            expose_value=False,
            callback=_flag,
            help="Of a database of record, postgresql://…, mysql://… or sqlite:///….",
        ),
        click.option(
            "--record-schema",
            metavar="NAME",
            expose_value=False,
            callback=_flag,
            help="Of the record's tables, on PostgreSQL.",
        ),
        click.option(
            "--namespace", metavar="NAME", expose_value=False, callback=_flag, help="Default: duly."
        ),
        click.option(
            "--data", metavar="DIR", expose_value=False, callback=_flag, help="Of the embedded server."
        ),
        click.option(
            "--url",
            metavar="URL",
            expose_value=False,
            callback=_flag,
            help=about_url,
        ),
    ):
        command = option(command)
    return command


def _flag(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None and option.name:
        context.meta.setdefault("duly.flags", {})[option.name] = value


def flags_of(context: click.Context | None = None) -> dict[str, Any]:
    """
    What the command line says of the queue, by the names of settings.
    """
    found = context or click.get_current_context(silent=True)
    flags: dict[str, Any] = {} if found is None else found.meta.get("duly.flags", {})
    return flags


def record_of() -> tuple[Target, str]:
    """
    The record, and the namespace, for commands that need no queue.

    Raises:
        UsageError: There is no record.
    """
    from duly.errors import UsageError
    from duly.extras import need
    from duly.settings import Settings

    need("a record", "sqlalchemy")
    settings = Settings.load(**flags_of())
    if settings.record is None:
        raise UsageError("which record? Say --record URL, set DULY_RECORD, or record in duly.toml")
    from duly.record.target import Target

    return Target.of(settings), settings.namespace


def app_of(context: click.Context | None = None, *, existing: bool = False) -> Duly:
    """
    An app without handlers, for commands that only look and steer.

    With *existing*, a queue that is not there is an error: who looks in the wrong place should be told, and
    not be shown a new and empty one.

    Raises:
        StoreUnavailable: There is no embedded server's directory.
    """
    from duly.app import Duly
    from duly.errors import StoreUnavailable
    from duly.logs import LAST_RESORT, TextFormatter

    # What a command has to say is no log.
    LAST_RESORT.setFormatter(TextFormatter("duly: %(message)s"))
    app = Duly(**flags_of(context))
    app.must_exist = existing
    if existing and app.settings.url is None and not app.settings.data.exists():
        raise StoreUnavailable(
            f"there is no queue in {app.settings.data.absolute()}; "
            "go where the app runs, or say --data or --url"
        )
    return app


class Parsed(_ParamType):
    """
    A value that duly reads itself, so that what is wrong is said in the same words everywhere.
    """

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """
        Read it.
        """
        from duly.errors import UsageError

        try:
            return self._read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str) -> timedelta:
    from datetime import timedelta

    from duly.durations import parse_duration

    return timedelta(milliseconds=parse_duration(text))


def duration_between(least: str, most: str) -> Parsed:
    """
    A duration that is neither shorter than *least* nor longer than *most*.
    """

    def read(text: str) -> timedelta:
        from duly.errors import UsageError

        found = _duration(text)
        if not _duration(least) <= found <= _duration(most):
            raise UsageError(f"{text!r} must be from {least} to {most}")
        return found

    return Parsed("duration", read)


def _time(text: str) -> datetime:
    from duly.durations import parse_time

    return parse_time(text)


def _filter(text: str) -> Where:
    from duly.where import parse

    return parse(text)


def _topic(text: str) -> str:
    from duly.job import check_topic

    return check_topic(text)


def _key(text: str) -> JobKey:
    from duly.errors import UsageError
    from duly.job import JobKey, check_id, check_topic

    topic, slash, id_ = text.partition("/")
    if not slash:
        raise UsageError(f"{text!r} does not name a job: write TOPIC/ID, e.g. mail/{text or '42'}")
    return JobKey(check_topic(topic), check_id(id_))


DURATION = Parsed("duration", _duration)
TIME = Parsed("time", _time)
FILTER = Parsed("filter", _filter)
TOPIC = Parsed("topic", _topic)
KEY = Parsed("job", _key)

where = click.option(
    "--where", type=FILTER, metavar="FILTER", help="Only jobs that this filter lets through."
)
topic = click.option(
    "--topic", "topics", type=TOPIC, multiple=True, metavar="NAME", help="Only this topic; repeatable."
)
state = click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only this state; repeatable."
)
