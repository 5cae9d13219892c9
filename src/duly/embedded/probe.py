"""
Talk to the server in the simplest way: one connection, one command, no client library.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 1.0  #: a server that is there and says nothing for so long is as good as gone


def ask(path: Path, *words: str) -> str:
    """
    Send one command and return its answer as text: lines of RESP, or an error that begins with ``-``.

    Only for short answers.

    Raises:
        OSError: Nobody answers.
    """
    parts = [word.encode() for word in words]
    request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(request)
        answer = connection.recv(65_536)
    if not answer:
        raise ConnectionResetError("the server closed the connection")
    return answer.decode(errors="replace")
