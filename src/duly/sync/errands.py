"""
Errands: what a coroutine on the twin's loop has done by the thread that waits for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from duly.record.sessions import Elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from queue import SimpleQueue

    from duly.record.sessions import AnySession


class Errands:
    """
    One call of the twin: the thread that made it serves it, until it is over.
    """

    def __init__(self, asked: SimpleQueue[Any]) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = asked

    def with_(self, session: AnySession) -> Elsewhere:
        """
        The session, as the coroutine is given it.
        """
        return Elsewhere(session, self._run)

    def serve(self, call: Future[Any]) -> None:
        """
        Run errands until *call* is over.
        """
        call.add_done_callback(lambda _: self._asked.put(None))
        while (asked := self._asked.get()) is not None:
            errand, answer = asked
            loop = answer.get_loop()
            try:
                told = errand()
            except Exception as error:  # noqa: BLE001  # the coroutine is told, whatever it was
                loop.call_soon_threadsafe(_fail, answer, error)
            else:
                loop.call_soon_threadsafe(_tell, answer, told)

    async def _run(self, errand: Callable[[], Any]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.put((errand, answer))
        return await answer


def _tell(answer: asyncio.Future[Any], told: object) -> None:
    if not answer.done():
        answer.set_result(told)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
