"""
What holds where neither a job nor its handler says anything: each default is written once, here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.backoff import DEFAULT, Backoff, Exponential

if TYPE_CHECKING:
    from duly.codec import Envelope

HOUR_MS = 3_600_000
MIB = 1024 * 1024

CALLBACK_ATTEMPTS = 10  #: how often a job is sent to its callback
CALLBACK_BACKOFF = Exponential(base=5, cap=3600)  #: what is waited in between
MAX_CRASHES = 3  #: runs that may be lost with their worker
LEASE_MS = 15_000  #: how long a worker may fall silent before its jobs are recovered
KEEP_SUCCEEDED_MS = 24 * HOUR_MS
KEEP_SUCCEEDED_BYTES = 256 * MIB
KEEP_DEAD_MS = 14 * 24 * HOUR_MS
KEEP_DEAD_BYTES = 256 * MIB
RECORD_POOL_SIZE = 5  #: connections to the record's database that a process keeps
RECORD_MAX_OVERFLOW = 5  #: connections beyond that, closed when they are given back


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """
    The terms of a run: of handlers that say nothing else, and of topics whose handler is not known here.
    """

    max_attempts: int = 5
    backoff: Backoff = DEFAULT
    ttr_ms: int = 300_000


DEFAULTS = Defaults()


def attempts_of(envelope: Envelope, default: int) -> int:
    """
    Return how many runs a job has at most: its own number, else that of callbacks, else *default*.
    """
    return envelope.max_attempts or (CALLBACK_ATTEMPTS if envelope.callback else default)
