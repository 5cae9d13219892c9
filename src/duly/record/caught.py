"""
Runs as the events of Redis tell them, for the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.events import Verb
from duly.job import JobState
from duly.record.runs import EndedRun
from duly.records import NOBODY, UNKNOWN, read

if TYPE_CHECKING:
    from duly.events import Row
    from duly.records import Head

_ACK, _BURY, _RECOVER = 1, 3, 5  # how a stored record says what ended its last run


def counted_run(row: Row, at_ms: int) -> EndedRun:
    """
    A run that did not end its job.
    """
    head, crashed = row.head, row.verb is Verb.recovered
    return EndedRun(
        row.key,
        head.revision,
        # Its worker tells of a run that failed, with the error; of one that crashed nobody else can.
        head.token if crashed else 0,
        row.verb.value,
        JobState.scheduled,
        head.attempts + crashed,
        head.attempts,
        head.crashes,
        _worker(head),
        head.started_ms,
        at_ms,
        None,
        b"",
    )


def ended_run(row: Row, about: list[bytes]) -> EndedRun:
    """
    A run that ended its job; *about* it what `get` says, for the outcome, if Redis still knows it.
    """
    head, outcome = row.head, b""
    # A job that was cancelled while it waited has no run that ended with it, only earlier ones.
    ran = head.verb in (_ACK, _BURY, _RECOVER) or (head.verb == 0 and head.worker != NOBODY)
    told = head.verb in (_ACK, _BURY) and head.lateness_ms != UNKNOWN
    if about:
        now = read(about[0]).head
        outcome = about[2] if now.revision == head.revision and now.state.ended else b""
    return EndedRun(
        row.key,
        head.revision,
        head.token if ran else 0,
        "recovered" if head.verb == _RECOVER else row.verb.value,
        head.state,
        head.attempts if head.verb in (_ACK, _BURY) else head.attempts + 1,
        head.attempts,
        head.crashes,
        _worker(head),
        head.started_ms,
        head.ended_ms,
        head.lateness_ms if told else None,
        outcome,
    )


def _worker(head: Head) -> str:
    return "" if head.worker == NOBODY else head.worker.hex()
