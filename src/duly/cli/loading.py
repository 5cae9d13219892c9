"""
Find the app that a user names on the command line.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.app import Duly
from duly.cli.options import flags_of
from duly.errors import UsageError
from duly.settings import KEYS

if TYPE_CHECKING:
    from duly.settings import Settings


def load_app(name: str) -> Duly:
    """
    Import ``module:attribute`` from the working directory, for the queue that the command line names, if any.

    Raises:
        UsageError: There is no such module or attribute, it is not an app, or a flag is wrong.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{name!r} does not name an app: write module:app, e.g. shop.jobs:app")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").replace("/", ".").strip(".")
        raise UsageError(f"{name!r} names a file: write {dotted}:{attribute}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module {module_name} in {here} or on the Python path; run duly where it can be imported"
            ) from None
        raise UsageError(f"{module_name} needs {error.name}, which is not installed") from error
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            apps = [each for each, value in vars(module).items() if isinstance(value, Duly)]
            hint = f"; did you mean {module_name}:{apps[0]}?" if apps else ""
            raise UsageError(f"{module_name} has no {attribute}{hint}") from None
    if not isinstance(found, Duly):
        raise UsageError(f"{name} is a {type(found).__name__}, not a Duly app")
    if flags := flags_of():
        found.redirect(_changed(found.settings, flags))
    return found


def _changed(settings: Settings, flags: dict[str, str]) -> Settings:
    """
    The settings of an app with what the command line says of its queue.
    """
    changes: dict[str, Any] = {}
    for key, value in flags.items():
        name, parse = KEYS[key]
        changes[name] = parse(value)
    if "data" in flags:
        changes.setdefault("url", None)  # a folder is that of an embedded server, whatever the app says
    return replace(settings, **changes)
