"""
Contact with the server, as a thread sees it that no handler can hold up.
"""

from __future__ import annotations

import math
import time


class Contact:
    """
    Since when the server has answered without a long pause.

    The heart notes its answers, in its own thread.  Where the loop of this process was busy, they tell that
    the server was there meanwhile for everybody else.
    """

    def __init__(self, pause_s: float) -> None:
        """
        Prepare: answers that lie at most *pause_s* apart are one contact.
        """
        self._pause_s = pause_s
        self._lasts = (math.inf, -math.inf)  #: from and until; replaced as a whole, for other threads read it

    def note(self) -> None:
        """
        Note that the server has just answered.
        """
        now_s = time.monotonic()
        from_s, until_s = self._lasts
        self._lasts = (from_s if now_s - until_s <= self._pause_s else now_s, now_s)

    def lasted(self, from_s: float, until_s: float) -> bool:
        """
        Return whether there was contact from one moment to another, on the monotonic clock.
        """
        since_s, last_s = self._lasts
        return since_s - from_s <= self._pause_s and until_s - last_s <= self._pause_s
