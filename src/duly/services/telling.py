"""
What the log says of runs: how they failed, and which were given back.
"""

from __future__ import annotations

import logging
from pathlib import PurePath
from typing import TYPE_CHECKING

from duly.codec import Unreadable, decode
from duly.logs import about
from duly.outcome import Buried, Planned, Raised
from duly.services.children import ChildError

if TYPE_CHECKING:
    from duly.outcome import RetryLater
    from duly.services.running import Run

#: `duly work` shows them; a program that has set up no logging is left alone.
log = logging.getLogger("duly.runs")
log.addHandler(logging.NullHandler())


def tell_release(run: Run, worker: str) -> None:
    """
    Say that a run was given back.
    """
    log.info("%s: released", run.lease.key, extra=about(run.lease, worker))


def tell_failure(
    run: Run, answer: object, outcome: RetryLater | Buried, worker: str, *, tracebacks: bool
) -> None:
    """
    Say how a run failed: by type and place.  A message may quote what the job was given.
    """
    lease = run.lease
    error = answer.exc if isinstance(answer, Raised) else answer
    ours = isinstance(error, Planned | Unreadable | ChildError)
    raised = error if isinstance(error, BaseException) and not ours else None
    what = _kind_of(outcome.error) + _place_of(raised)
    trace = raised if tracebacks else None
    extra = about(lease, worker)
    if isinstance(outcome, Buried):
        text = "%s, attempt %d: dead: %s"
        log.error(text, lease.key, lease.attempt, what, exc_info=trace, extra=extra)
        return
    level, ending = (logging.WARNING, "failed") if outcome.counted else (logging.INFO, "put off")
    text = "%s, attempt %d: %s, again in %g s: %s"
    words = (lease.key, lease.attempt, ending, outcome.delay_ms / 1000, what)
    log.log(level, text, *words, exc_info=trace, extra=extra)


def _kind_of(document: bytes) -> str:
    """
    The type in an error document, without the message: that may quote a payload.
    """
    return str(decode(document).get("type", "?"))


def _place_of(error: BaseException | None) -> str:
    """
    Where an exception was raised, as far as is told: the file and line of its innermost frame.
    """
    trace = error.__traceback__ if error else None
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
