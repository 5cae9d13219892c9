"""
What stands between a client and a service: a wire that loses answers, and hosts that are no duly.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """
    One request with its body, empty at the end.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head + await reader.readexactly(length)


class Wire:
    """
    A port in front of the service's; *lose* says for how many more requests the answer is lost.

    Of *hold* more requests the answer is held until `released`, and the connection stays open.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.url = ""
        self.lose = 0
        self.hold = 0
        self.released = asyncio.Event()
        self.flows = asyncio.Event()  #: cleared, no request gets through, on whichever connection
        self.flows.set()
        self.matching = b""
        self.meanwhile = None  #: called once an answer was lost, before the client knows
        self.seen: list[bytes] = []
        self._clients: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """
        Lose every connection there is.
        """
        for client in list(self._clients):
            client.transport.abort()

    def silence(self) -> None:
        """
        Let nothing through any more on the connections of now, without a reset; new ones work.
        """
        self._silent |= self._clients

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)
        answers = asyncio.create_task(_pump(server, to_client))
        self._clients.add(to_client)
        try:
            while request := await read_request(client):
                self.seen.append(request)
                if to_client in self._silent:
                    continue
                lost = self.lose > 0 and self.matching in request
                held = self.hold > 0 and self.matching in request
                if lost or held:
                    self.lose -= lost
                    self.hold -= held
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                await self.flows.wait()
                to_server.write(request)
                await to_server.drain()
                if lost:
                    await server.read(1)  # the service has answered: it has done what was asked
                    if self.meanwhile is not None:
                        await self.meanwhile()
                    return
                if held:
                    await self.released.wait()
                    answers = asyncio.create_task(_pump(server, to_client))
        finally:
            answers.cancel()
            self._clients.discard(to_client)
            for writer in (to_server, to_client):
                with suppress(OSError, RuntimeError):
                    writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def wire_to(port: int) -> AsyncIterator[Wire]:
    """
    A wire to the service on *port*.
    """
    wire = Wire(port)
    tasks: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(_tracked(wire.serve, tasks), "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        await _end(server, tasks)


@asynccontextmanager
async def host(*answers: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """
    A host that answers these, one after the other, the last again and again; its URL and what it was asked.

    One without answers says nothing.
    """
    asked: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while request := await read_request(client):
            if not answers:
                await asyncio.Event().wait()
            head, _, body = answers[min(len(asked), len(answers) - 1)].partition("\n\n")
            asked.append(request)
            lines = [
                f"HTTP/1.1 {head.splitlines()[0]}",
                *head.splitlines()[1:],
                f"Content-Length: {len(body)}",
            ]
            to_client.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
            await to_client.drain()

    server = await asyncio.start_server(_tracked(serve, tasks), "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        await _end(server, tasks)


def _tracked(serve, tasks):
    async def tracked(client, to_client):
        task = asyncio.current_task()
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await serve(client, to_client)
        finally:
            to_client.close()

    return tracked


async def _end(server, tasks) -> None:
    server.close()
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
