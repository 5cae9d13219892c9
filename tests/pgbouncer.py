"""
A real pgbouncer in transaction mode, before a PostgreSQL that tests have started.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.ports import held_port
from tests.tools import tool

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS_WITHIN_S = 30


@contextmanager
def pgbouncer(url: str, *, connections: int = 3) -> Iterator[str]:
    """
    The URL of a pooler that has few *connections* to the database of *url*, for each transaction another.
    """
    server, _, name = url.rpartition("/")
    host, _, port = server.rpartition("@")[2].partition(":")
    with held_port() as mine, tempfile.TemporaryDirectory(prefix="duly-pgbouncer-") as folder:
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(f"""
[databases]
* = host={host} port={port} user=duly
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {mine}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
# The server's connection that was used longest ago: hardly ever the one of the client's last transaction.
server_round_robin = 1
{"user = nobody" if os.getuid() == 0 else ""}
""")
        log = Path(folder, "log")
        with log.open("wb") as out:
            process = subprocess.Popen([tool("pgbouncer"), str(settings)], stdout=out, stderr=out)
        through = f"postgresql://duly@127.0.0.1:{mine}/{name}"
        try:
            _wait(through, process, log)
            yield through
        finally:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text(errors="replace")) from None
            time.sleep(0.02)
        else:
            return
