"""
Receivers of callbacks, good and hostile: real sockets, and whatever bytes a test wants on them.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    Behaviour = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    """
    A request as it came.
    """

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """
    Where it listens, and what it got.
    """

    port: int
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    @property
    def allow(self) -> str:
        """
        An entry of the allow list that opens this very place.
        """
        return f"127.0.0.1:{self.port}"

    def url(self, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/hook?from=duly"


def answering(status: str = "200 OK", body: bytes = b"", **headers: str) -> Behaviour:
    """
    Answer as a good receiver does.
    """

    async def behave(_request: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return behave


def saying(*parts: bytes, again: bytes = b"", pause_s: float = 0.0) -> Behaviour:
    """
    Write *parts*, then *again* without end.
    """

    async def behave(_request: Request, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        while again:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return behave


@asynccontextmanager
async def receiving(*behaviours: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """
    Listen on a free port: the first request meets the first behaviour, what is beyond the last meets that.
    """
    receiver = Receiver(0)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        receiver.connections += 1
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *fields = head.rstrip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in fields)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            receiver.requests.append(Request(line, headers, body))
            at = min(len(receiver.requests), len(behaviours)) - 1
            await behaviours[at](receiver.requests[-1], writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # whoever called has seen enough, or the test has
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
