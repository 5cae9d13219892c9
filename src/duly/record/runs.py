"""
A run of a job that has ended, as the record keeps it.  A plain value: no database is needed to make one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from duly.job import JobKey, JobState


class EndedRun(msgspec.Struct, frozen=True, gc=False):
    """
    What became of one run, and of its job where that ended with it.

    Thousands of them wait for the database in a busy worker: the garbage collector need not look at them.
    """

    key: JobKey
    revision: int
    token: int  #: tells this run from every other; 0 for an ending without one
    word: str  #: as in the events: acked, retried, buried, released, recovered, cancelled
    state: JobState  #: of the job from then on
    attempt: int  #: the number of the run
    attempts: int  #: runs that were counted, with this one
    crashes: int
    worker: str
    started_ms: int
    ended_ms: int
    lateness_ms: int | None
    outcome: bytes  #: result, or error document

    @property
    def size(self) -> int:
        """
        About how many bytes it takes to keep it in mind.
        """
        return len(self.outcome) + 400

    def end_row(self, generation: int) -> dict[str, Any]:
        """
        What the row of its job is told, if that has ended.
        """
        return {
            "topic": self.key.topic,
            "id": self.key.id,
            "token": self.token,
            "revision": self.revision,
            "generation": generation,
            "state": self.state.value,
            "outcome": self.outcome or None,
            "attempts": self.attempts,
            "crashes": self.crashes,
            "started_ms": self.started_ms or None,
            "ended_ms": self.ended_ms,
            "lateness_ms": self.lateness_ms,
        }

    def count_row(self) -> dict[str, Any]:
        """
        What the row of its job is told, if that is still open.
        """
        return {
            "topic": self.key.topic,
            "id": self.key.id,
            "revision": self.revision,
            "attempts": self.attempts,
            "crashes": self.crashes,
        }

    def attempt_row(self) -> dict[str, Any]:
        """
        The row of the run itself.
        """
        return {
            "topic": self.key.topic,
            "id": self.key.id,
            "token": self.token,
            "revision": self.revision,
            "attempt": self.attempt,
            "word": self.word,
            "worker": self.worker,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "lateness_ms": self.lateness_ms,
            # The result of a job is in its own row.
            "error": None if self.state is JobState.succeeded else self.outcome or None,
        }
