"""
A clock that stands still until a test moves it.
"""

from __future__ import annotations


class TestClock:
    """
    Milliseconds that only `advance` changes; for namespaces created with ``clock="test"``.
    """

    __test__ = False  # not a test class, whatever its name suggests to pytest

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """
        The time.
        """
        return self.now_ms

    def advance(self, *, ms: int = 0, s: float = 0) -> int:
        """
        Move on, and return the new time.
        """
        self.now_ms += ms + round(s * 1000)
        return self.now_ms
