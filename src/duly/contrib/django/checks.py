"""
What ``manage.py check`` says of a project's settings.
"""

from __future__ import annotations

from typing import Any

from django.core import checks

from duly.contrib.django import load_settings
from duly.errors import UsageError


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """
    Find out whether the app of the project can be made.
    """
    try:
        load_settings()
    except UsageError as error:
        # The entries of DULY are read as flags; the message is about the setting.
        said = str(error).removeprefix("flags: ")
        return [checks.Error(said, obj="settings.DULY", id="duly.E001")]
    return []


def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """
    Find what works on one machine and not on several.
    """
    try:
        settings = load_settings()
    except UsageError:
        return []  # told by the other
    if settings.url is not None:
        return []
    return [
        checks.Warning(
            f"jobs wait in the embedded server in {settings.data.absolute()}, "
            "so that each machine has a queue of its own",
            hint='name a server that all machines share: DULY = {"url": "redis://…"}',
            obj="settings.DULY",
            id="duly.W001",
        )
    ]
