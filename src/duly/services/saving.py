"""
Saving what became of a run: one store verb for each outcome.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from duly.errors import DulyError, JobNotFound, LeaseLost
from duly.logs import about
from duly.outcome import Ack, Buried, RetryLater
from duly.pauses import Pauses
from duly.store import refused

if TYPE_CHECKING:
    from duly.job import Lease
    from duly.outcome import Outcome
    from duly.services.running import Run
    from duly.store import Store

log = logging.getLogger("duly.worker")

TRIES = 5  #: of an outcome that the server refuses

_VERBS = {Ack: "acked", RetryLater: "retried", Buried: "buried", type(None): "released"}


async def save(store: Store, run: Run, outcome: Outcome | None, worker: str) -> bool:
    """
    Store an outcome, however long the store is away; None releases the job.  False if it does not count.

    One that the server refuses each time is given up: the job's lease runs out, and crashes are counted.
    """
    pauses, refusals = Pauses(), 0
    while True:
        try:
            await _save_once(store, run, outcome)
        except (LeaseLost, JobNotFound):
            return False
        except DulyError as error:
            refusals += refused(error)
            if refusals == TRIES:
                log.critical(
                    "the server refuses the outcome of %s, which is given up and runs again: %s",
                    *(run.lease.key, error),
                    extra=about(run.lease, worker),
                )
                return False
            # Refused, unreachable or unknown: the same call again is safe, and the lease decides.
            log.warning(
                "outcome of %s not stored yet: %s",
                *(run.lease.key, error),
                extra=about(run.lease, worker),
            )
            await asyncio.sleep(pauses.take())
            continue
        run.verb = _VERBS[type(outcome)]
        return True


async def _save_once(store: Store, run: Run, outcome: Outcome | None) -> None:
    lease = run.lease
    match outcome:
        case None:
            await store.release(lease)
        case Ack(result):
            await store.ack(lease, result, lateness_ms=run.lateness_ms())
        case RetryLater(delay_ms, error, reason, counted):
            await store.retry(lease, delay_ms, error, reason, counted=counted, lateness_ms=run.lateness_ms())
        case Buried(error, reason):
            await store.bury(lease, error, reason, lateness_ms=run.lateness_ms())


async def give_back(store: Store, lease: Lease, worker: str) -> None:
    """
    Release a job that was not begun; if that fails, its lease runs out.
    """
    try:
        await store.release(lease)
    except DulyError as error:
        log.warning("could not release %s: %s", lease.key, error, extra=about(lease, worker))
