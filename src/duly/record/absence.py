"""
Whether Redis is away: one place knows it for all who can do without, so that no call waits for it long.

Questions are asked of a server that answered last.  One that is silent for too long is away, and then one
look at a time is made for it: until that is answered, everybody does without at once.  A call that finds no
look under way waits for a new one first, so a server that is back is used again before rows decide alone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from duly.connection import CallRefused
from duly.errors import DulyError, OutcomeUnknown, StoreUnavailable
from duly.loops import start_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from duly.store import Store

T = TypeVar("T")

log = logging.getLogger("duly.record")

ANSWERS_WITHIN_S = 1.0  #: how long Redis may be silent to a call: in total, far less than callers are patient
LOOKS_EVERY_S = 0.1  #: at most: a look lasts for as long as connections are patient
SLOW_S = 2.0  #: how long a question may take longer than that, if Redis answers others meanwhile
AWAY = (StoreUnavailable, CallRefused, OutcomeUnknown, TimeoutError)  #: the rows decide alone


class StillAway(StoreUnavailable):  # to others it is what it derives from
    """
    Redis was not asked, because it did not answer a moment ago.
    """


class Absence:
    """
    What is known of a server that may be away.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._away = False
        self._look: asyncio.Task[None] | None = None
        self._looks_again_s = 0.0
        self._awaited_until_s = 0.0  #: how long the look that is under way is waited for
        self._slow: set[asyncio.Timeout] = set()  #: of questions that were not answered soon

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """
        Ask Redis something, unless it is away.

        Raises:
            StoreUnavailable: It is, or does not answer, or refuses.
        """
        if self._away:
            await self._wait_for_look()
        began_s = asyncio.get_running_loop().time()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                with self._watched(limit, began_s):
                    answer = await question()
        except AWAY as error:
            self._away = True
            # What was refused was answered: the next question waits for what a look says.
            until_s = began_s if limit.expired() else asyncio.get_running_loop().time()
            self._begin_look(until_s + ANSWERS_WITHIN_S)
            raise StoreUnavailable(f"the queue does not answer: {str(error) or 'silence'}") from error
        self.heard()
        return answer

    def heard(self) -> None:
        """
        Take note that Redis has answered.
        """
        self._away = False
        until_s = asyncio.get_running_loop().time() + SLOW_S
        for limit in self._slow:
            if not limit.expired():
                limit.reschedule(until_s)
        self._slow.clear()

    async def aclose(self) -> None:
        """
        End the look that is under way.
        """
        if self._look is not None and self._looks():
            self._look.cancel()
            await asyncio.wait({self._look})

    async def _wait_for_look(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._looks() and loop.time() >= self._looks_again_s:
            self._begin_look(loop.time() + ANSWERS_WITHIN_S)
        left_s = self._awaited_until_s - loop.time()
        if left_s > 0 and self._look is not None and self._looks():
            await asyncio.wait({self._look}, timeout=left_s)
        if self._away:
            raise StillAway("the queue did not answer a moment ago")

    @contextmanager
    def _watched(self, limit: asyncio.Timeout, began_s: float) -> Iterator[None]:
        handle = asyncio.get_running_loop().call_later(ANSWERS_WITHIN_S / 2, self._suspect, limit, began_s)
        try:
            yield
        finally:
            handle.cancel()
            self._slow.discard(limit)

    def _suspect(self, limit: asyncio.Timeout, began_s: float) -> None:
        """
        Tell a slow answer from a silent server: a look that begins now is answered in time, or nothing is.
        """
        # From now on and not from the beginning: this process may have stood still itself.
        limit.reschedule(asyncio.get_running_loop().time() + ANSWERS_WITHIN_S / 2)
        self._slow.add(limit)
        self._begin_look(began_s + ANSWERS_WITHIN_S)

    def _looks(self) -> bool:
        look = self._look
        return look is not None and not look.done() and look.get_loop() is asyncio.get_running_loop()

    def _begin_look(self, awaited_until_s: float) -> None:
        if not self._looks():
            loop = asyncio.get_running_loop()
            self._awaited_until_s, self._looks_again_s = awaited_until_s, loop.time() + LOOKS_EVERY_S
            self._look = start_beside(self._look_for_it())

    async def _look_for_it(self) -> None:
        """
        Ask Redis what costs nothing, for as long as its connections are patient.
        """
        try:
            # A server that loads its data tells the time, and nothing else.
            await self._store.link.call("EXISTS", self._store.keys[0].fixed["meta"])
        except (StoreUnavailable, OutcomeUnknown, TimeoutError) as error:
            log.debug("the queue is away: %s", str(error) or "silence")
            return
        except DulyError as error:
            log.debug("the queue answers, with a refusal: %s", error)
        self.heard()
