"""
A wire that can be cut or fall silent: stands between a client and a server, and loses requests or replies.

It runs in a thread of its own, so that it serves tests of any kind, also of other processes.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Where = Literal["before", "inside", "after", "silent"]


@dataclass
class Cut:
    """
    Where to lose what: before a request reaches the server, inside it, or after it, with its reply.

    "silent" loses the reply, too, and leaves the connection open: nothing comes through it any more.
    """

    where: Where
    matching: bytes
    times: int
    then: Callable[[], object] | None


class Proxy:
    """
    A Unix socket in front of a server's.
    """

    def __init__(self, upstream: Path) -> None:
        self.upstream = upstream
        self.dir = Path(tempfile.mkdtemp(prefix="duly-proxy-"))
        self.made = 0  #: how many cuts were made
        self.swallowed: list[bytes] = []  #: what clients sent into silent connections
        self._cut: Cut | None = None
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()  #: one for each connection
        self._silent: set[asyncio.Task[None]] = set()
        self._server = self._call(asyncio.start_unix_server(self._serve, str(self.socket)))

    @property
    def socket(self) -> Path:
        return self.dir / "p.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def cut(
        self, where: Where, matching: str = "", *, times: int = 1, then: Callable[[], object] | None = None
    ) -> None:
        """
        Lose the next *times* requests that contain *matching*; call *then* before the connection closes.
        """
        with self._lock:
            self._cut = Cut(where, matching.encode(), times, then)

    def silence(self) -> None:
        """
        Let nothing through any more on the connections of now, without a reset; new ones work.
        """

        async def fall_silent() -> None:
            self._silent |= self._tasks

        self._call(fall_silent())

    def mend(self) -> None:
        """
        Lose nothing any more.
        """
        with self._lock:
            self._cut = None

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _due_cut(self, request: bytes) -> Cut | None:
        with self._lock:
            cut = self._cut
            if cut is None or not cut.times or cut.matching not in request:
                return None
            cut.times -= 1
            self.made += 1
            return cut

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._silent.discard)
        try:
            server, to_server = await asyncio.open_unix_connection(str(self.upstream))
        except OSError:
            to_client.close()
            return
        replies = asyncio.create_task(self._pump(server, to_client, task))
        try:
            while request := await _read_request(client):
                if task in self._silent:
                    self.swallowed.append(request)
                    continue
                cut = self._due_cut(request)
                if cut is None:
                    to_server.write(request)
                    await to_server.drain()
                    continue
                if cut.where == "inside":
                    to_server.write(request[: len(request) // 2])
                    await to_server.drain()
                if cut.where in {"after", "silent"}:
                    replies.cancel()
                    await asyncio.gather(replies, return_exceptions=True)
                    to_server.write(request)
                    await to_server.drain()
                    await server.read(1)  # the server has answered: it has done what was asked
                if cut.then:
                    cut.then()
                if cut.where != "silent":
                    return
                self._silent.add(task)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            replies.cancel()
            for writer in (to_server, to_client):
                with suppress(OSError, RuntimeError):
                    writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if task not in self._silent:
                    writer.write(data)
                    await writer.drain()
            if task not in self._silent:
                writer.close()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    """
    One command as clients send it, an array of strings; nothing at the end.
    """
    head = await reader.readline()
    if not head:
        return b""
    parts = [head]
    for _ in range(int(head[1:])):
        size = await reader.readline()
        parts += (size, await reader.readexactly(int(size[1:]) + 2))
    return b"".join(parts)
