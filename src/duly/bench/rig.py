"""
The rig: a fresh server, an app with a handler that does nothing, and what the server says of its own cost.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from duly.app import Duly
from duly.context import current_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from duly.handlers import AsyncHandler

CONCURRENCY = 1_000  #: of the worker that is measured
PAD = "x" * 79  #: makes the payload 100 bytes


class Rig:
    """
    One app on one server, measured.
    """

    def __init__(self, app: Duly, record: str | None = None) -> None:
        self.app = app
        self.record = record  #: the database to measure with; None: one of its own
        self.ran: dict[str, int] = {}
        self.late_ms: list[float] = []
        self.timed = False  #: whether runs note their lateness
        self.noop: AsyncHandler[[int, str], None] = self._handler()

    def _handler(self) -> AsyncHandler[[int, str], None]:
        @self.app.handler("bench")
        async def noop(n: int, pad: str) -> None:  # noqa: ARG001  # they only fill the payload
            job = current_job()
            self.ran[job.id] = self.ran.get(job.id, 0) + 1
            if self.timed:
                # The server is on this machine, so its clock and ours are the same one.
                self.late_ms.append(time.time() * 1000 - job.due_ms)

        return noop

    async def clear(self) -> None:
        """
        Begin with an empty server.
        """
        store = await self.app.store()
        await store.link.call("FLUSHALL", "SYNC")
        await store.link.call("CONFIG", "RESETSTAT")
        await store.link.call("SLOWLOG", "RESET")
        await self.app.reconnect()
        self.ran.clear()
        self.late_ms.clear()

    async def info(self, section: str) -> dict[str, str]:
        """
        One section of the server's INFO.
        """
        text: bytes = await (await self.app.store()).link.call("INFO", section)
        return dict(line.partition(":")[::2] for line in text.decode().splitlines() if ":" in line)

    async def server_cpu_s(self) -> float:
        """
        Processor time that the server's main thread has used.
        """
        info = await self.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    async def memory(self) -> int:
        """
        Bytes that the server holds.
        """
        return int((await self.info("memory"))["used_memory"])

    async def commands(self) -> int:
        """
        Commands that the server ran, those inside scripts counted.
        """
        info = await self.info("commandstats")
        return sum(int(value.partition("calls=")[2].partition(",")[0]) for value in info.values())

    @asynccontextmanager
    async def working(self, concurrency: int = CONCURRENCY) -> AsyncIterator[None]:
        """
        A worker in this process meanwhile.
        """
        task = asyncio.create_task(self.app.work(concurrency=concurrency))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def ended(self, count: int, patience_s: float = 120) -> None:
        """
        Wait until *count* jobs have succeeded, as the store counts them.
        """
        views = await self.app.views()
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            topics = (await views.stats()).topics
            if topics and topics[0].counts["succeeded"] >= count:
                return
            await asyncio.sleep(0.02)
        raise RuntimeError(f"{count} jobs did not end within {patience_s:g} s; {len(self.ran)} ran")


@asynccontextmanager
async def rig(url: str | None, record: str | None = None) -> AsyncIterator[Rig]:
    """
    A rig on *url*, or on an embedded server in a temporary directory, synced to disk every second.
    """
    # The server ends a moment after its last user, and may write meanwhile.
    with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as data:
        app = Duly(url, namespace="bench", data=data, durability="everysec")
        async with app:
            yield Rig(app, record)
