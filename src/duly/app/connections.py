"""
What an app has connected on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from duly.record.assembly import WholeRecord
    from duly.remote.store import RemoteStore
    from duly.remote.waiting import RemoteWaiters
    from duly.store import Store
    from duly.waiting import Waiters

log = logging.getLogger("duly")


class Connections:
    """
    The store, the record and the waiters of one event loop, closed at the latest when that loop ends.

    All of it is used by the thread of the loop only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Connections], None]) -> None:
        """
        Prepare; *ended* is called when the loop ends.
        """
        self.loop = loop
        self.opening = asyncio.Lock()  #: one task connects, the others wait for it
        self.store: Store | RemoteStore | None = None
        self.record: WholeRecord | None = None
        self.waiters: Waiters | RemoteWaiters | None = None
        self.unrecorded = False  #: the namespace was seen to have no record
        self._ended = ended
        self._life: AsyncGenerator[None, None] | None = None

    async def hold(self, store: Store | RemoteStore, record: WholeRecord | None) -> None:
        """
        Take over what was connected, until `aclose` or the end of the loop.
        """
        if self._life is None:
            # The end of a loop closes its async generators, and nothing else that could await.
            self._life = self._live()
            await anext(self._life)
        self.store, self.record, self.unrecorded = store, record, False

    async def aclose(self) -> None:
        """
        Close what is connected; it may be connected again.
        """
        async with self.opening:
            try:
                await self._close()
            finally:
                if self._life is not None:
                    life, self._life = self._life, None
                    await life.aclose()

    def leave(self) -> object:
        """
        Forget what is connected without closing it, in a forked child.

        Returns: all of it, to be kept: freeing it would close it.
        """
        held = (self.loop, self.store, self.record, self.waiters, self._life)
        self.store = self.record = self.waiters = self._life = None
        return held

    async def _live(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._life is not None:
                self._life = None
                self._ended(self)
                try:
                    await self._close()
                except Exception as error:  # the loop would print it, and nobody can help it
                    log.debug(
                        "the connections of a loop that ended were not closed: %s", error, exc_info=error
                    )

    async def _close(self) -> None:
        store, record, waiters = self.store, self.record, self.waiters
        self.store = self.record = self.waiters = None
        try:
            if waiters is not None:
                await waiters.aclose()
        finally:
            try:
                if record is not None:
                    await record.aclose()
            finally:
                if store is not None:
                    await store.link.aclose()
