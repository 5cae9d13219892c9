"""
The Pythons of this machine that the built wheel is tried on.

The Python that runs the tests is one of them, so there is always one.  No file of the project can install
the others: a stock Debian has one Python, and no registry of packages carries interpreters.  Where there are
more, by a package, pyenv or uv, the wheel is tried on each; with ``TEST_PYTHONS=3.11,3.12,3.13`` a missing
one fails.  CI names those that its machine has.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = ("3.11", "3.12", "3.13")
#: Folders of Pythons that are not on the PATH, or there only as a script that asks for a choice.
_FOLDERS = (
    ("PYENV_ROOT", "~/.pyenv", "versions/{version}*/bin"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "cpython-{version}*/bin"),
)
_CHECK = "import sys, venv; print('%d.%d' % sys.version_info[:2], sys.executable)"


@functools.cache
def find_python(version: str) -> str | None:
    """
    The path of an interpreter of *version*, such as 3.12, that runs here.
    """
    for candidate in _candidates(version):
        try:
            done = subprocess.run([candidate, "-c", _CHECK], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0 and done.stdout.split()[0] == version:
            return done.stdout.split(maxsplit=1)[1].strip()
    return None


def python(version: str) -> str:
    """
    The same, or a skip with the remedy; a failure where ``TEST_PYTHONS`` names it.
    """
    if found := find_python(version):
        return found
    text = f"no Python {version} here: .venv/bin/uv python install {version}, or pyenv install {version}"
    if version in _named():
        pytest.fail(text)
    pytest.skip(text)


def oldest(since: str) -> str:
    """
    The oldest version from *since* on that runs here; else one that ``TEST_PYTHONS`` names, or *since*.
    """
    versions = VERSIONS[VERSIONS.index(since) :]
    named = [version for version in versions if version in _named()]
    return next((version for version in versions if find_python(version)), (named or [since])[0])


def _named() -> list[str]:
    return os.environ.get("TEST_PYTHONS", "").split(",")


def _candidates(version: str) -> Iterator[str]:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        # Not the environment of the tests, which has everything: what it was made from.
        yield sys._base_executable
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        yield str(Path(folder) / f"python{version}")
    for variable, home, pattern in _FOLDERS:
        root = Path(os.environ.get(variable) or home).expanduser()
        yield from (str(folder / "python3") for folder in sorted(root.glob(pattern.format(version=version))))
