"""
Jobs as tests look at them: payloads read, times told from the clock of the test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from duly.codec import Unreadable, decode
from duly.job import JobState

if TYPE_CHECKING:
    from datetime import datetime

    from duly.job import Job

PAYLOAD_CHARS = 200


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """
    A job as it was when the test looked.
    """

    topic: str
    id: str
    state: str  #: scheduled, ready, running, succeeded, dead, cancelled
    payload: Any  #: as JSON: a handler's arguments by name
    due_at: datetime | None
    delay: timedelta  #: from the clock's now until it is due; zero if it is due
    attempts: int  #: runs that were counted
    priority: str
    context: dict[str, Any]
    result: Any  #: of a succeeded job
    error: dict[str, Any] | None  #: of a dead or cancelled job, or of the last failed run: type and message
    job: Job = field(repr=False)  #: everything that the store knows of it

    @property
    def waits(self) -> bool:
        """
        Whether it has not ended.
        """
        return not self.job.state.ended

    def __str__(self) -> str:
        when = f"due in {self.delay}" if self.state == "scheduled" else self.state
        said = repr(self.payload)
        if len(said) > PAYLOAD_CHARS:
            said = f"{said[:PAYLOAD_CHARS]}…"
        words = [f"{self.topic}/{self.id}", when, said]
        if self.attempts:
            words.append(f"after {self.attempts} attempt{'s' if self.attempts > 1 else ''}")
        if self.error:
            words.append(
                ": ".join(str(self.error[part]) for part in ("type", "message") if self.error.get(part))
            )
        return "  ".join(words)


def snapshot(job: Job, now_ms: int) -> JobSnapshot:
    """
    Read what a test wants to know of a job.
    """
    outcome = _read(job.outcome) if job.outcome else None
    succeeded = job.state is JobState.succeeded
    return JobSnapshot(
        topic=job.topic,
        id=job.id,
        state=job.state.name,
        payload=_read(job.payload),
        due_at=job.due_at,
        delay=timedelta(milliseconds=max(0, job.due_ms - now_ms)),
        attempts=job.attempts,
        priority=job.priority,
        context=(job.envelope.context if job.envelope else None) or {},
        result=outcome if succeeded else None,
        error=None if succeeded or not isinstance(outcome, dict) else outcome,
        job=job,
    )


def _read(data: bytes) -> Any:
    try:
        return decode(data)
    except Unreadable:
        return data
