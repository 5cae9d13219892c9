"""
A server that nobody needs for longer than this process lives: its files go with it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from duly.embedded.keeper import THROW_AWAY
from duly.embedded.server import EmbeddedServer

LINGER_S = 0.5  #: how long it outlasts the process

_servers: dict[int, EmbeddedServer] = {}  #: by process: a forked child has one of its own
_starting = threading.Lock()


def throw_away_server() -> str:
    """
    Return the URL of this process's throw-away server, which is started on first use.  Blocks.

    Raises:
        StoreUnavailable, ServerUnsuitable: It does not start.
    """
    with _starting:
        server = _servers.get(os.getpid())
        if server is None:
            folder = Path(tempfile.mkdtemp(prefix="duly-tests-"))
            (folder / THROW_AWAY).touch()
            server = EmbeddedServer(folder, "everysec", linger_s=LINGER_S)
            server.start()
            _servers[os.getpid()] = server
    return server.url


def _renew_lock() -> None:
    # Whoever held it when the process was forked does not exist in the child.
    global _starting  # noqa: PLW0603  # it guards what belongs to the process
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
