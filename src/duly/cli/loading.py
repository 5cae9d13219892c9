"""
Find the app that a user names on the command line.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from duly.app import Duly
from duly.errors import UsageError


def load_app(name: str) -> Duly:
    """
    Import ``module:attribute`` from the working directory.

    Raises:
        UsageError: There is no such module or attribute, or it is not an app.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{name!r} does not name an app: write module:app, e.g. shop.jobs:app")
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
    return found
