"""
Pauses between tries: ever longer, and not the same for all who lost the same server.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress


class Pauses:
    """
    How long to wait after each failure in a row.
    """

    def __init__(self, first_s: float = 0.05, longest_s: float = 2.0) -> None:
        self.next_s = first_s  #: at the most
        self._first_s = first_s
        self._longest_s = longest_s

    def take(self) -> float:
        """
        The seconds to wait now; the next ones are more.
        """
        taken_s = self.next_s * random.uniform(0.5, 1.0)  # jitter, not secrecy
        self.next_s = min(2 * self.next_s, self._longest_s)
        return taken_s

    async def wait(self, stop: asyncio.Event | None = None) -> None:
        """
        Wait before a loop goes on, at most until *stop* is set.

        A library that tidies up may answer a cancellation with an error of its own: the loop ends then, too.

        Raises:
            CancelledError: The task was asked to end.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        if stop is None:
            await asyncio.sleep(self.take())
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self.take()):
                await stop.wait()

    def reset(self) -> None:
        """
        Begin with short ones again: it works.
        """
        self.next_s = self._first_s
