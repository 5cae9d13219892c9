"""
What dead jobs died of: one line for each topic and kind of error, however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.documents import error_of
from duly.failure import signature_of
from duly.job import JobState
from duly.select import Selection, select

if TYPE_CHECKING:
    from duly.job import Job
    from duly.views import Views

MOST = 1_000  #: kinds that are told apart; a message that is never the same twice must not fill the memory
OTHERS = "(other errors)"


@dataclass(slots=True)
class Death:
    """
    The dead jobs of one topic that failed in the same way.
    """

    topic: str
    error: str  #: type and message, numbers and ids collapsed to #
    count: int
    first_ms: int
    last_ms: int
    example: str  #: the id of the last one


def error_signature(job: Job) -> str:
    """
    How a job failed, in a line that its like share.
    """
    told = error_of(job) or {}
    return signature_of(str(told.get("type", "unknown")), str(told.get("message", "")))


async def deaths(views: Views, topics: tuple[str, ...] | None = None) -> list[Death]:
    """
    Sort dead jobs by topic and error, the most frequent first.
    """
    found: dict[tuple[str, str], Death] = {}
    async for part in select(views, Selection((JobState.dead,), topics)):
        for job in part.jobs:
            kind = (job.topic, error_signature(job))
            if kind not in found and len(found) >= MOST:
                kind = (job.topic, OTHERS)
            death = found.get(kind)
            if death is None:
                found[kind] = Death(*kind, 1, job.ended_ms, job.ended_ms, job.id)
                continue
            death.count += 1
            death.first_ms = min(death.first_ms, job.ended_ms)
            if job.ended_ms >= death.last_ms:
                death.last_ms, death.example = job.ended_ms, job.id
    return sorted(found.values(), key=lambda death: (-death.count, death.topic, death.error))
