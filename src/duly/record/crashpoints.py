"""
Crash points: named places between two steps at which a test can have the process die.

Whoever sets DULY_CRASH_POINTS, before duly is imported, names those that are meant, separated by commas.
Without it there is nothing at these places but a call that does nothing.
"""

from __future__ import annotations

import os
import signal

MEANT = frozenset(os.environ.get("DULY_CRASH_POINTS", "").replace(",", " ").split())


def _die(name: str) -> None:
    """
    End the process as the power cord would, if *name* is meant.
    """
    if name in MEANT:
        os.kill(os.getpid(), signal.SIGKILL)


def _go_on(name: str) -> None:
    """
    Do nothing: no crash point is meant.
    """


crash_point = _die if MEANT else _go_on
