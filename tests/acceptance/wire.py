"""
A bad wire: stands between clients and a server and cuts or silences connections by chance.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import hiredis

if TYPE_CHECKING:
    import random

CUTS = ("before the request", "inside the request", "before the reply", "inside the reply", "after the reply")
SILENCES = tuple(f"silent {where}" for where in CUTS)  #: without a reset: the connection stays open


class Wire:
    """
    A Unix socket in front of a server's; *share* of the exchanges end in one of *ends*.
    """

    def __init__(
        self, upstream: Path, chance: random.Random, *, share: float, ends: tuple[str, ...] = CUTS
    ) -> None:
        self.upstream = upstream
        self.chance = chance
        self.share = share
        self.ends = ends
        self.dir = Path(tempfile.mkdtemp(prefix="duly-wire-"))
        self.cuts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"unix://{self.dir / 'w.sock'}"

    async def start(self) -> Wire:
        self._server = await asyncio.start_unix_server(self._serve, str(self.dir / "w.sock"))
        return self

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        to_server = None
        try:
            server, to_server = await asyncio.open_unix_connection(str(self.upstream))
            await self._exchange(client, to_client, server, to_server)
            if self.ends is SILENCES:
                while await client.read(65536):
                    pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for writer in (to_client, to_server):
                with suppress(OSError, RuntimeError, AttributeError):
                    writer.close()

    async def _exchange(self, client, to_client, server, to_server) -> None:
        while request := await _read_request(client):
            if b"SUBSCRIBE" in request:
                to_server.write(request)
                while data := await server.read(65536):
                    to_client.write(data)
                    await to_client.drain()
                return
            cut = self.chance.choice(self.ends) if self.chance.random() < self.share else ""
            if cut:
                self.cuts[cut] += 1
            cut = cut.removeprefix("silent ")
            if cut == "before the request":
                return
            to_server.write(request[: len(request) // 2] if cut == "inside the request" else request)
            await to_server.drain()
            if cut == "inside the request":
                return
            reply = await _read_reply(server)
            if not reply or cut == "before the reply":
                return
            to_client.write(reply[: len(reply) // 2] if cut == "inside the reply" else reply)
            await to_client.drain()
            if cut:
                return


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readline()
    if not head:
        return b""
    parts = [head]
    for _ in range(int(head[1:])):
        size = await reader.readline()
        parts += (size, await reader.readexactly(int(size[1:]) + 2))
    return b"".join(parts)


async def _read_reply(reader: asyncio.StreamReader) -> bytes:
    parser, parts = hiredis.Reader(), []
    while True:
        data = await reader.read(65536)
        if not data:
            return b""
        parts.append(data)
        parser.feed(data)
        if parser.gets() is not False:
            return b"".join(parts)
