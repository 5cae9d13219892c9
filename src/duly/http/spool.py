"""
Spools: answers that their client has not read yet, in memory and beyond that in a temporary file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

log = logging.getLogger("duly.http")

T = TypeVar("T")

MEMORY = 1024 * 1024  #: bytes of one spool that stay in memory
PIECE = 256 * 1024  #: bytes that are read from its file at once
THREADS = 2  #: for all files; those of the event loop's own pool may all wait for something else


class Spools:
    """
    All spools of a service, which have a bound together.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.size = 0  #: bytes that wait
        self.threads = ThreadPoolExecutor(THREADS, "duly-spool")

    def open(self, limit: int) -> Spool:
        """
        Return a spool that is full with *limit* bytes.
        """
        return Spool(self, limit)

    def close(self) -> None:
        """
        Let the threads end.
        """
        self.threads.shutdown(wait=False)


class Spool:
    """
    Bytes on their way from one task, which never waits for the other, to another.
    """

    def __init__(self, spools: Spools, limit: int) -> None:
        self._spools, self._limit = spools, limit
        self._held: list[bytes] = []  #: the newest
        self._held_size = 0
        self._file: IO[bytes] | None = None  #: what came before those
        self._read_at = self._write_at = 0
        self._files = asyncio.Lock()
        self._busy: asyncio.Future[object] | None = None
        self._news = asyncio.Event()
        self._ended = False

    @property
    def size(self) -> int:
        """
        The bytes that wait.
        """
        return self._held_size + self._write_at - self._read_at

    @property
    def full(self) -> bool:
        """
        Whether nothing more should be put, because of this spool or of all of them together.
        """
        return self.size >= self._limit or self._spools.size >= self._spools.total

    async def put(self, data: bytes) -> None:
        """
        Add *data*; whoever does so asks first whether the spool is full.
        """
        self._hold(data)
        if self._held_size > MEMORY:
            async with self._files:
                await self._write()

    def end(self, last: bytes = b"") -> None:
        """
        Add *last*; nothing comes behind it.
        """
        self._hold(last)
        self._ended = True

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._held_size += len(data)
            self._spools.size += len(data)
        self._news.set()

    async def parts(self) -> AsyncIterator[bytes]:
        """
        Take what was put, until the end.
        """
        while True:
            self._news.clear()
            data = await self._take()
            if data:
                yield data
            elif self._ended:
                return
            else:
                await self._news.wait()

    async def _take(self) -> bytes:
        async with self._files:
            if self._write_at:
                data = await self._aside(self._read)
                self._read_at += len(data)
                if self._read_at == self._write_at:
                    self._read_at = self._write_at = 0  # the file is used again from its beginning
            else:
                data, self._held, self._held_size = b"".join(self._held), [], 0
        self._spools.size -= len(data)
        return data

    async def _write(self) -> None:
        data = b"".join(self._held)
        try:
            await self._aside(lambda: self._append(data))
        except OSError as error:
            log.warning("no more can be spooled in %s: %s", tempfile.gettempdir(), error)
            self._limit = 0
            return
        self._write_at += len(data)
        self._held, self._held_size = [], 0

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="duly-spool-", buffering=0)  # noqa: SIM115  # closed with the spool
        view, at = memoryview(data), self._write_at
        while view:
            size = os.pwrite(self._file.fileno(), view, at)
            view, at = view[size:], at + size

    def _read(self) -> bytes:
        assert self._file is not None  # noqa: S101  # something was written
        size = min(PIECE, self._write_at - self._read_at)
        return os.pread(self._file.fileno(), size, self._read_at)

    async def _aside(self, work: Callable[[], T]) -> T:
        """
        Do what may have to wait for a disk in a thread, and to its end, also if its task is cancelled.
        """
        loop = asyncio.get_running_loop()
        busy = loop.run_in_executor(self._spools.threads, work)
        self._busy = cast("asyncio.Future[object]", busy)
        return await asyncio.shield(busy)

    def close(self) -> None:
        """
        Forget everything.
        """
        self._spools.size -= self.size
        self._held, self._held_size, self._read_at, self._write_at, self._limit = [], 0, 0, 0, 0
        if self._busy is not None and not self._busy.done():
            self._busy.add_done_callback(lambda _: self._close_file())
        else:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
