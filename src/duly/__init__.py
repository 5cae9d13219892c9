"""
Run a function when it is due: never before, within milliseconds after, and never lost.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.backoff import Exponential, Fixed, Intervals
    from duly.codec import Codec
    from duly.context import CurrentJob, current_context, current_job
    from duly.errors import (
        Conflict,
        DulyError,
        EventsLost,
        JobCancelled,
        JobExists,
        JobFailed,
        JobNotFound,
        LayoutMismatch,
        LeaseLost,
        OutcomeUnknown,
        QueueFull,
        RecordUnavailable,
        ResultGone,
        ServerUnsuitable,
        ServiceFault,
        StoreUnavailable,
        Unsupported,
        UsageError,
    )
    from duly.events import Event
    from duly.handle import JobHandle
    from duly.handlers import Handler, NewJob
    from duly.job import Job, JobState
    from duly.outcome import Bury, Retry, Snooze
    from duly.replies import Reply
    from duly.settings import Settings

__version__ = "0.1.0"

#: Where each name lives.  Imported when it is first used: `duly --version` should not wait for a queue.
_HOMES = {
    "Bury": "duly.outcome",
    "Codec": "duly.codec",
    "Conflict": "duly.errors",
    "CurrentJob": "duly.context",
    "Duly": "duly.app",
    "DulyError": "duly.errors",
    "Event": "duly.events",
    "EventsLost": "duly.errors",
    "Exponential": "duly.backoff",
    "Fixed": "duly.backoff",
    "Handler": "duly.handlers",
    "Intervals": "duly.backoff",
    "Job": "duly.job",
    "JobCancelled": "duly.errors",
    "JobExists": "duly.errors",
    "JobFailed": "duly.errors",
    "JobHandle": "duly.handle",
    "JobNotFound": "duly.errors",
    "JobState": "duly.job",
    "LayoutMismatch": "duly.errors",
    "LeaseLost": "duly.errors",
    "NewJob": "duly.handlers",
    "OutcomeUnknown": "duly.errors",
    "QueueFull": "duly.errors",
    "RecordUnavailable": "duly.errors",
    "Reply": "duly.replies",
    "ResultGone": "duly.errors",
    "Retry": "duly.outcome",
    "ServerUnsuitable": "duly.errors",
    "ServiceFault": "duly.errors",
    "Settings": "duly.settings",
    "Snooze": "duly.outcome",
    "StoreUnavailable": "duly.errors",
    "Unsupported": "duly.errors",
    "UsageError": "duly.errors",
    "current_context": "duly.context",
    "current_job": "duly.context",
}

__all__ = [
    "Bury",
    "Codec",
    "Conflict",
    "CurrentJob",
    "Duly",
    "DulyError",
    "Event",
    "EventsLost",
    "Exponential",
    "Fixed",
    "Handler",
    "Intervals",
    "Job",
    "JobCancelled",
    "JobExists",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobState",
    "LayoutMismatch",
    "LeaseLost",
    "NewJob",
    "OutcomeUnknown",
    "QueueFull",
    "RecordUnavailable",
    "Reply",
    "ResultGone",
    "Retry",
    "ServerUnsuitable",
    "ServiceFault",
    "Settings",
    "Snooze",
    "StoreUnavailable",
    "Unsupported",
    "UsageError",
    "current_context",
    "current_job",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'duly' has no attribute {name!r}"
        raise AttributeError(msg)
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
