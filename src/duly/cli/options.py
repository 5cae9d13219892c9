"""
Options that many commands share, and the app they make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.app import Duly

F = TypeVar("F", bound="Callable[..., Any]")

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def server(command: F) -> F:
    """
    Say which queue: ``url``, ``data`` and ``namespace`` become one argument, ``flags``, for `app_of`.
    """
    for option in (
        click.option(
            "--namespace", metavar="NAME", expose_value=False, callback=_flag, help="Default: duly."
        ),
        click.option(
            "--data", metavar="DIR", expose_value=False, callback=_flag, help="Of the embedded server."
        ),
        click.option(
            "--url", metavar="URL", expose_value=False, callback=_flag, help="Of a server of your own."
        ),
    ):
        command = option(command)
    return command


def _flag(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None and option.name:
        context.meta.setdefault("duly.flags", {})[option.name] = value


def app_of(context: click.Context | None = None) -> Duly:
    """
    An app without handlers, for commands that only look and steer.
    """
    from duly.app import Duly

    flags: dict[str, Any] = (context or click.get_current_context()).meta.get("duly.flags", {})
    return Duly(**flags)
