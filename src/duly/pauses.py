"""
Pauses between tries: ever longer, and not the same for all who lost the same server.
"""

from __future__ import annotations

import random


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

    def reset(self) -> None:
        """
        Begin with short ones again: it works.
        """
        self.next_s = self._first_s
