"""
Ports for servers that take a number and not a socket.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def kept_port() -> Iterator[int]:
    """
    A port of this machine that is nobody else's as long as the block lasts.

    It is bound here all the while: who lets others reuse an address and listens, as servers do, gets it, and
    nobody is given it who asks for any that is free.
    """
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]
