"""
What it means when the record and the queue say different things of a job.

Pure, and shared by whoever compares them: after a restart of the server, `duly record
reconcile`, and the pipeline that does it for millions.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import NamedTuple

from duly.job import JobState


class Difference(StrEnum):
    """
    How a job differs.
    """

    missing = "missing"  #: promised, and the queue does not have it
    behind = "behind"  #: the queue has an older revision than was promised
    finished = "finished"  #: it has ended, and the queue would run it again
    due = "due"  #: the queue has it at another time
    payload = "payload"  #: the queue has it with another payload or other options
    unrecorded = "unrecorded"  #: it has ended in the queue, and the record does not say so
    orphan = "orphan"  #: in the queue, and nobody promised it
    ahead = "ahead"  #: changed in the queue without the record


#: What is done about each.
REPAIRS = {
    Difference.missing: "put back",
    Difference.behind: "put back",
    Difference.finished: "forgotten by the queue",
    Difference.due: "put back as promised",
    Difference.payload: "put back as promised",
    Difference.unrecorded: "recorded",
    Difference.orphan: "adopted",
    Difference.ahead: "adopted",
}


class Promised(NamedTuple):
    """
    A job as the record knows it.
    """

    revision: int
    ended: bool
    due_ms: int
    body: bytes  #: options and payload, or a digest of them; of both sides the same
    on_its_way: bool = False  #: the relay has still to take this revision to the queue, now or near its time


class Queued(NamedTuple):
    """
    A job as the queue knows it.
    """

    revision: int
    state: JobState
    due_ms: int
    body: bytes
    began: bool = False  #: it ran before, so that its time is that of the next attempt


def digest(body: bytes) -> bytes:
    """
    What stands for a body where bodies of millions of jobs are compared.
    """
    return hashlib.blake2b(body, digest_size=16).digest()


def judge(promised: Promised | None, queued: Queued | None) -> Difference | None:
    """
    Tell how a job differs, None if it does not, or if the relay will see to it.
    """
    if promised is None:
        return None if queued is None or queued.state.ended else Difference.orphan
    if queued is None:
        return None if promised.ended or promised.on_its_way else Difference.missing
    if queued.revision > promised.revision:
        return Difference.ahead
    if promised.on_its_way:
        return None
    if promised.ended:
        return None if queued.state.ended else Difference.finished
    if queued.revision < promised.revision:
        return Difference.behind
    if queued.state.ended:
        return Difference.unrecorded
    return _drift(promised, queued)


def _drift(promised: Promised, queued: Queued) -> Difference | None:
    if queued.state is JobState.running:
        return None  # to put it back would run it twice
    if queued.body != promised.body:
        return Difference.payload
    # One that is ready is due, whatever its time was; a retry has a time of its own.
    waits = queued.state is JobState.scheduled and not queued.began
    return Difference.due if waits and queued.due_ms != promised.due_ms else None
