"""
Bells: who waits for work over HTTP, and who looks next.

A poll costs no connection and no command while it waits.  One listener for each topic takes the tokens that
scripts push for it, and lets one poll look for each; once a second it lets one look anyway, because a token
may have gone with a process that died.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from duly.errors import DulyError

if TYPE_CHECKING:
    from duly.store import Store

log = logging.getLogger("duly.http")

LISTEN_S = 1.0
PAUSE_S = 0.5  #: where the server cannot be asked


class Bells:
    """
    The polls of each topic, longest waiting first, over connections of their own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, topic: str) -> asyncio.Future[None]:
        """
        Stand in line; what is returned is done when it is time to look.
        """
        if topic not in self._lines:
            self._lines[topic] = deque()
            task = asyncio.create_task(self._listen(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines[topic].append(call)
        return call

    def leave(self, topic: str, call: asyncio.Future[None]) -> None:
        """
        Leave the line; who was called and did not look since passes it on.
        """
        if call.done():
            self._ring(topic)
        elif topic in self._lines:
            self._lines[topic].remove(call)

    def _ring(self, topic: str) -> bool:
        """
        Call who has waited longest; False if nobody waits.
        """
        line = self._lines.get(topic)
        if not line:
            return False
        line.popleft().set_result(None)
        return True

    async def _listen(self, topic: str) -> None:
        """
        Listen for as long as somebody waits.
        """
        token = False
        try:
            while True:
                try:
                    token = await self._store.wait((topic,), LISTEN_S)
                except DulyError as error:
                    token = False
                    log.info("cannot wait for work of %s: %s", topic, error)
                    await asyncio.sleep(PAUSE_S)
                if not self._ring(topic):
                    break
        finally:
            # Who comes from now on starts another listener.
            del self._lines[topic]
        if token:
            await self._pass_on(topic)

    async def _pass_on(self, topic: str) -> None:
        """
        Put a token back that nobody here wants any more: another process may have who does.
        """
        try:
            await self._store.link.call("LPUSH", self._store.keys[0].wake(topic), "1")
        except DulyError as error:
            log.info("cannot pass on a token of %s: %s", topic, error)

    async def aclose(self) -> None:
        """
        Stop listening.
        """
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.link.aclose()
