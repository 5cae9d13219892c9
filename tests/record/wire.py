"""
A wire to a database that can be cut at a COMMIT: before the server reads it, or after it has answered.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Literal

from sqlalchemy.engine import make_url

Where = Literal["before", "after", "silent"]


class Wire:
    """
    A port in front of a database server's, served by a thread of its own.
    """

    def __init__(self, url: str) -> None:
        upstream = make_url(url)
        assert upstream.host
        assert upstream.port
        self._upstream = upstream.host, upstream.port
        self.cuts = 0  #: how many were made
        self._where: Where | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        self.url = upstream.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)

    def cut(self, where: Where) -> None:
        """
        Cut the connection that the next COMMIT goes through; "silent" keeps it open, and nothing comes back.
        """
        self._where = where

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server, to_server = await asyncio.open_connection(*self._upstream)
        replies = asyncio.create_task(_pump(server, to_client))
        try:
            while request := await client.read(65536):
                if self._where is None or b"COMMIT" not in request:
                    to_server.write(request)
                    await to_server.drain()
                    continue
                where, self._where = self._where, None
                if where != "before":
                    replies.cancel()
                    await asyncio.gather(replies, return_exceptions=True)
                    to_server.write(request)
                    await to_server.drain()
                    await server.read(1)  # it has answered: it has committed
                self.cuts += 1
                if where == "silent":
                    await client.read()  # until the client gives up
                return
        except OSError:
            pass
        finally:
            replies.cancel()
            for writer in (to_server, to_client):
                with suppress(OSError, RuntimeError):
                    writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
