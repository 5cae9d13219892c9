"""
Ports for servers that take a number and not a socket.
"""

from __future__ import annotations

import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def held_port() -> Iterator[int]:
    """
    A port that nobody else is given, however late the server comes that is to have it.
    """
    with socket.socket() as held:
        # Linux lets servers, which say so too, share it with one that does not listen; who asks for any port
        # gets another.  Elsewhere it has to be let go.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        if sys.platform != "linux":
            held.close()
        yield port
