"""
For tests of code that uses duly: a real server, a clock that tests move, and assertions.

With pytest, take the fixtures of `duly.testing.plugin`, which is loaded by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.testing.bed import TestBed
    from duly.testing.clock import TestClock
    from duly.testing.draining import Drained, Ran
    from duly.testing.realqueue import real_queue
    from duly.testing.snapshots import JobSnapshot

#: Where each name lives.  Imported when it is first used: pytest loads the plugin for everybody.
_HOMES = {
    "Drained": "duly.testing.draining",
    "JobSnapshot": "duly.testing.snapshots",
    "Ran": "duly.testing.draining",
    "TestBed": "duly.testing.bed",
    "TestClock": "duly.testing.clock",
    "real_queue": "duly.testing.realqueue",
}

__all__ = ["Drained", "JobSnapshot", "Ran", "TestBed", "TestClock", "real_queue"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'duly.testing' has no attribute {name!r}"
        raise AttributeError(msg)
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return list(__all__)
