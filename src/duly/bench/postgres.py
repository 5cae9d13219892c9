"""
A PostgreSQL of our own for a measure: new, in a temporary folder, and gone with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS_WITHIN_S = 60
STOPS_WITHIN_S = 10
FREE_PORT_TRIES = 5
REMEDY = "apt-get install postgresql (13 or later; its service need not run), or say --record URL"


def program(name: str) -> str | None:
    """
    Where a program of PostgreSQL is, None if it is not installed.
    """
    # Debian keeps each release in a folder of its own, which no PATH names; the newest one first.
    releases = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_release, reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, releases)]))


def _release(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0


@contextmanager
def postgresql() -> Iterator[str]:
    """
    The URL of an empty database, as long as it is used.

    It keeps its promises as one in production does: its settings are those it comes with, fsync among them.

    Raises:
        RuntimeError: It is not installed, or does not start.
    """
    initdb, postgres = program("initdb"), program("postgres")
    if initdb is None or postgres is None:
        raise RuntimeError(f"no PostgreSQL here: {REMEDY}")
    # It refuses to be root: it is then somebody who owns nothing else.
    user = "nobody" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="duly-bench-db-"))
    try:
        if user:
            shutil.chown(folder, user)
        files = str(folder / "data")
        made = subprocess.run(
            [initdb, "-D", files, "-U", "duly", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True,
            text=True,
            user=user,
            cwd=folder,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr.strip()}")
        process, port = _start([postgres, "-D", files], folder, user)
        try:
            yield f"postgresql://duly@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # without waiting for who is still connected
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOPS_WITHIN_S)
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: list[str], folder: Path, user: str | None) -> tuple[subprocess.Popen[bytes], int]:
    said = folder / "log"
    for _ in range(FREE_PORT_TRIES):
        port = _free_port()
        options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""}
        flags = [flag for name, value in options.items() for flag in ("-c", f"{name}={value}")]
        with said.open("ab") as log:
            process = subprocess.Popen([*command, *flags], stdout=log, stderr=log, user=user, cwd=folder)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(port):
                return process, port
            time.sleep(0.02)
        process.kill()
        process.wait()
    raise RuntimeError(f"PostgreSQL does not start: {said.read_text(errors='replace')[-2_000:]}")


def _answers(port: int) -> bool:
    import psycopg  # a package that need not be there

    try:
        psycopg.connect(f"postgresql://duly@127.0.0.1:{port}/postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
