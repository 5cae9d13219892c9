"""
The wire below uvicorn: what is written in one turn of the loop leaves in one packet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio


class Corked:
    """
    A transport that holds what is written until the loop turns.

    uvicorn writes the head of an answer and its body apart, and each would be a call to the system and wake
    the client up: for short answers that is most of what sending costs.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """
        Send it with the next turn.
        """
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """
        Send what is held, and close.
        """
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """
    HTTP/1.1 as uvicorn speaks it, over a corked transport.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """
        Begin.
        """
        corked = Corked(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", corked))
