"""
For tests of code that uses duly.
"""

from duly.testing.clock import TestClock

__all__ = ["TestClock"]
