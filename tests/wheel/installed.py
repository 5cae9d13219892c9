"""
The wheel as a user gets it: built once, installed without extras into an environment for each Python.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT
from tests.wheel.pythons import python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ \\]+)(.*?) *\\?$", re.MULTILINE)

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Installed:
    """
    One environment with duly and its few dependencies, and with pytest, which the tutorial installs.
    """

    version: str
    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def environ(self, **more: str) -> dict[str, str]:
        """
        What a user's shell has after ``. .venv/bin/activate``, and nothing of the tests' own environment.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DULY_", "PYTEST", "PYTHON", "VIRTUAL_ENV", "COV"))
        }
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return kept | {"PATH": path, "VIRTUAL_ENV": str(self.folder), "COLUMNS": "120"} | more

    def run(
        self, *command: str | Path, cwd: Path, within_s: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """
        Run a program of the environment, ``python`` or ``duly``, to its end.
        """
        name, *words = command
        return subprocess.run(
            [self.bin / name, *words],
            cwd=cwd,
            env=self.environ(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
        )


def install(version: str, shared: Path, *more: str) -> Installed:
    """
    Make the environment of *version* in *shared*, which all test processes use, unless it is there.

    *more* packages are those that are named, whatever versions the lock has of them.
    """
    interpreter = python(version)
    name = "-".join([version, *(_NAME.match(each)[0] for each in more)])  # type: ignore[index]
    made = Installed(version, shared / f"python-{name}")
    with _locked(shared / f"lock-{name}"):
        if not (made.folder / "ready").exists():
            wheel = _build(shared)
            _run(interpreter, "-m", "venv", "--clear", "--without-pip", str(made.folder))
            held = str(_constraints(shared, more))
            _pip(made, "install", "--constraint", held, str(wheel), "pytest", *more)
            (made.folder / "ready").touch()
    return made


def _build(shared: Path) -> Path:
    out = shared / "dist"
    with _locked(shared / "lock-dist"):
        if not list(out.glob("*.whl")):
            _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out))
    [wheel] = out.glob("*.whl")
    return wheel


def _constraints(shared: Path, but: Sequence[str] = ()) -> Path:
    """
    The versions of the lock without their hashes, which a wheel that was just built cannot have.
    """
    free = {_NAME.match(each)[0].lower() for each in but}  # type: ignore[index]
    pins = _PIN.findall((ROOT / "requirements.lock").read_text("utf-8"))
    assert len(pins) > 50, pins
    path = shared / f"constraints-{os.getpid()}.txt"
    held = [f"{name}=={version}{marker}\n" for name, version, marker in pins if name.lower() not in free]
    path.write_text("".join(held))
    return path


def _pip(made: Installed, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(made.bin / "python"), "--quiet"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", *words], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        text = f"duly's dependencies cannot be installed from a registry of packages: {''.join(last)}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(text)


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
