"""
What becomes of a job, by what its handler answered and what job and handler say of attempts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from duly.backoff import from_wire
from duly.codec import Unreadable
from duly.errors import UsageError
from duly.failure import reason_document, signature_of, with_traceback
from duly.logs import about
from duly.outcome import Buried, Raised, RetryLater, outcome_of
from duly.services.children import ChildCrashed, ChildError, ChildNotStarted

if TYPE_CHECKING:
    from duly.backoff import Backoff
    from duly.codec import Envelope
    from duly.job import Lease
    from duly.outcome import Outcome
    from duly.services.running import Run

log = logging.getLogger("duly.worker")

NOT_STARTED_MS = 1_000  #: how long a job is put off whose own process did not start
PUT_OFF_MS = 5_000  #: how long a job is put off whose earlier run has not ended where it was claimed


class PutOff:
    """
    The answer of a run that did not begin: an earlier one of the same job has not ended on this worker.
    """


def decide(
    run: Run,
    envelope: Envelope,
    answer: object,
    *,
    tracebacks: bool,
) -> Outcome:
    """
    Map the answer of a run to the next step of its job.
    """
    handler = run.handler
    if isinstance(answer, PutOff):
        # Later and uncounted: at once, this worker might be the one to claim it again, and again.
        reason = "overlap", "an earlier run of this job has not ended on the worker that claimed it"
        return RetryLater(PUT_OFF_MS, reason_document(*reason), signature_of(*reason), counted=False)
    if isinstance(answer, Raised):
        if isinstance(answer.exc, Unreadable):
            return Buried(reason_document("unreadable", str(answer.exc)), "unreadable")
        if isinstance(answer.exc, ChildNotStarted) and run.apart and handler.run_in != "process":
            # Nobody asked for that process: the job is not to blame, and runs alone on a worker next.
            told = "not started", str(answer.exc)
            return RetryLater(NOT_STARTED_MS, reason_document(*told), signature_of(*told), counted=False)
        if isinstance(answer.exc, ChildCrashed) and run.apart:
            # It was the only one there: nobody else is to blame, and trying again proves nothing new.
            message = f"{answer.exc}, after {run.lease.crashes} crashes, while it ran this job and no other"
            return Buried(reason_document("crashed", message), "crashed")
        if isinstance(answer.exc, ChildError):
            # What it raised has stayed in its process; what that said of it is kept.
            error = answer.exc
            document = with_traceback(error.document, error.traceback) if tracebacks else error.document
            if error.is_final:
                return Buried(document, error.signature)
            stand_in = Raised(Exception(error.signature))
            outcome = decide(run, envelope, stand_in, tracebacks=tracebacks)
            if isinstance(outcome, RetryLater):
                return RetryLater(outcome.delay_ms, document, error.signature, counted=True)
            return Buried(document, error.signature)
    return outcome_of(
        answer,
        attempt=run.lease.attempt,
        max_attempts=envelope.max_attempts or handler.max_attempts,
        backoff=_backoff_of(envelope, run.lease) or handler.backoff,
        encode_result=handler.encode_result,
        traceback=tracebacks,
    )


def _backoff_of(envelope: Envelope, lease: Lease) -> Backoff | None:
    try:
        return from_wire(envelope.backoff) if envelope.backoff else None
    except UsageError as error:
        # Sent by a newer release, maybe.  The handler's own is better than none.
        log.warning("cannot read the backoff of %s: %s", lease.key, error, extra=about(lease))
        return None
