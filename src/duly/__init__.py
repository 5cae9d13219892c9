"""
Run a function when it is due: never before, within milliseconds after, and never lost.
"""

from duly.app import Duly
from duly.backoff import Exponential, Fixed, Intervals
from duly.context import CurrentJob, current_job
from duly.errors import (
    Conflict,
    DulyError,
    JobCancelled,
    JobExists,
    JobFailed,
    JobNotFound,
    LayoutMismatch,
    LeaseLost,
    OutcomeUnknown,
    QueueFull,
    ServerUnsuitable,
    StoreUnavailable,
    UsageError,
)
from duly.handle import JobHandle
from duly.handlers import Handler, NewJob
from duly.job import Job, JobState
from duly.outcome import Bury, Retry, Snooze
from duly.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Bury",
    "Conflict",
    "CurrentJob",
    "Duly",
    "DulyError",
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
    "Retry",
    "ServerUnsuitable",
    "Settings",
    "Snooze",
    "StoreUnavailable",
    "UsageError",
    "current_job",
]
