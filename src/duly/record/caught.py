"""
Runs as the events of Redis tell them, for the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from duly.events import Verb
from duly.job import JobKey, JobState
from duly.record.runs import EndedRun
from duly.records import NOBODY, UNKNOWN, read

if TYPE_CHECKING:
    from duly.events import Event

_ACK, _BURY, _RECOVER = 1, 3, 5  # how a stored record says what ended its last run


def counted_run(event: Event) -> EndedRun:
    """
    A run that did not end its job: only what it counted is told.
    """
    attempts = event.attempt if event.verb is Verb.retried else event.attempt - 1
    key = JobKey(event.topic, event.id)
    return EndedRun(
        key,
        event.revision,
        0,
        event.verb.value,
        JobState.scheduled,
        event.attempt,
        attempts,
        event.crashes,
        "",
        0,
        event.at_ms,
        event.lateness_ms,
        b"",
    )


def ended_run(event: Event, about: list[bytes]) -> EndedRun:
    """
    A run that ended its job: as Redis still knows it, *about* it what `get` says, else as the event does.
    """
    run = replace(counted_run(event), state=event.state, attempts=event.attempt)
    if not about:
        return run
    head = read(about[0]).head
    if head.revision != event.revision or not head.state.ended:
        return run
    # A job that was cancelled while it waited has no run that ended with it, only earlier ones.
    ran = head.verb in (_ACK, _BURY, _RECOVER) or (head.verb == 0 and head.worker != NOBODY)
    return replace(
        run,
        token=head.token if ran else 0,
        word="recovered" if head.verb == _RECOVER else event.verb.value,
        attempt=head.attempts if head.verb in (_ACK, _BURY) else head.attempts + 1,
        worker="" if head.worker == NOBODY else head.worker.hex(),
        started_ms=head.started_ms,
        ended_ms=head.ended_ms,
        lateness_ms=None if head.lateness_ms == UNKNOWN else head.lateness_ms,
        outcome=about[2],
    )
