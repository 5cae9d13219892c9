"""
What the log says of runs: how they ended.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from duly.codec import Unreadable
from duly.logs import BRIEF, about, describe, describe_document
from duly.outcome import Buried, Planned, Raised, cause_of
from duly.services.children import ChildError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duly.outcome import RetryLater
    from duly.services.running import Run

log = logging.getLogger("duly.runs")


def tell_successes(runs: Iterable[Run], worker: str) -> None:
    """
    Say which of *runs* have succeeded.
    """
    if not log.isEnabledFor(logging.DEBUG):
        return
    for run in runs:
        if run.verb != "acked":
            continue
        lease, late_ms = run.lease, run.lateness_ms()
        took_ms = round(max(0.0, run.freed_s - run.started_s) * 1000, 1)
        log.debug(
            "%s, attempt %d: done, started %d ms late, took %g ms",
            *(lease.key, lease.attempt, late_ms, took_ms),
            extra=about(lease, worker) | {"lateness_ms": late_ms, "duration_ms": took_ms},
        )


def tell_after_commit(run: Run, answer: object, worker: str) -> None:
    """
    Say what a handler did after its transaction had ended the job: it changes nothing any more.
    """
    error = answer.exc if isinstance(answer, Raised) else answer
    if run.stopped in ("lost", "drain"):
        what, error = "was stopped", None
    elif isinstance(error, BaseException):
        what = f"failed: {describe(error)}"
    elif answer is None or _is_result(run, answer):
        return
    else:
        what = "returned another result than was given in its block, with set_result(), which counts"
    log.warning(
        "%s has succeeded with its transaction; after it, the handler %s",
        *(run.lease.key, what),
        exc_info=error if isinstance(error, BaseException) else None,
        extra=about(run.lease, worker) | BRIEF,
    )


def _is_result(run: Run, answer: object) -> bool:
    """
    Return whether a handler returned what it had given inside its block.
    """
    try:
        return run.committed is not None and run.handler.encode_result(answer) == run.committed.result
    except Exception:  # noqa: BLE001  # encoders are users' code
        return False


def tell_release(run: Run, worker: str) -> None:
    """
    Say that a run was given back.
    """
    log.info("%s: released", run.lease.key, extra=about(run.lease, worker))


def tell_failure(
    run: Run, answer: object, outcome: RetryLater | Buried, worker: str, *, tracebacks: bool
) -> None:
    """
    Say how a run failed: by type, place and message.

    The exception goes with the record, for those who collect exceptions.  To write its traceback takes ten
    times as long as the line, so our own lines have it only with *tracebacks*.
    """
    lease = run.lease
    raised = _exception_of(answer)
    if isinstance(raised, ChildError):
        # Its own frames are those of the worker, which nobody looks for.
        raised.__traceback__ = None
    what = describe_document(outcome.error, raised)
    more: dict[str, Any] = {
        "exc_info": raised,
        "extra": about(lease, worker) if tracebacks else about(lease, worker) | BRIEF,
    }
    if isinstance(outcome, Buried):
        log.error("%s, attempt %d: dead: %s", lease.key, lease.attempt, what, **more)
        return
    level, ending = (logging.WARNING, "failed") if outcome.counted else (logging.INFO, "put off")
    text = "%s, attempt %d: %s, again in %g s: %s"
    log.log(level, text, lease.key, lease.attempt, ending, outcome.delay_ms / 1000, what, **more)


def _exception_of(answer: object) -> BaseException | None:
    """
    The exception that somebody has to look at, if there is one.
    """
    error = answer.exc if isinstance(answer, Raised) else answer
    if isinstance(error, Planned):
        return cause_of(error)
    if not isinstance(answer, Raised) or isinstance(answer.exc, Unreadable):
        return None
    return answer.exc
