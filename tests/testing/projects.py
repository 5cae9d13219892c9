"""
A small project with tests of its own, and pytest run on it as a user would.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from typing import TYPE_CHECKING

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def install(folder: Path) -> Path:
    """
    What an installed duly tells pytest, from pyproject.toml; it may be installed without, or not at all.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    about = folder / f"duly-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: duly\nVersion: {project['version']}\n")
    points = project["entry-points"]["pytest11"]
    lines = [f"{name} = {module}" for name, module in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return folder


class Project:
    """
    Files in a folder, and the plugin installed for whoever runs Python there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self._installed = install(folder / "installed")
        self.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    @property
    def environ(self) -> dict[str, str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "PYTEST"))
        }
        return clean | {"PYTHONPATH": f"{self._installed}:{ROOT / 'src'}", "PYTHONUNBUFFERED": "1"}

    def command(self, *args: str) -> list[str]:
        return [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--basetemp"),
            *(str(self.folder.parent / "temporary"), *args),
        ]

    def pytest(self, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args),
            cwd=self.folder,
            env=self.environ | more,
            capture_output=True,
            text=True,
            timeout=300,  # for what hangs, on a machine with much else to do
        )


def outcome(run: subprocess.CompletedProcess[str]) -> str:
    """
    What pytest says in its last line, such as ``3 passed``; everything it said if there is no such line.
    """
    found = re.findall(r"^=*\s*((?:\d+ \w+,? ?)+)in [\d.]+s", run.stdout, re.MULTILINE)
    return found[-1].strip() if found else run.stdout + run.stderr
