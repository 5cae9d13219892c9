"""
Sentry: a scope of its own for each run, so that what a handler tells Sentry stays with its job.

Nothing of Sentry is imported here; a program that uses it has done so.
"""

from __future__ import annotations

import functools
import logging
import sys
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.job import Lease

log = logging.getLogger("duly")


def run_context(lease: Lease) -> Context:
    """
    Return a copy of the current context for one run, with an isolation scope where Sentry is set up.
    """
    return _copy_for("job", {"topic": lease.key.topic, "id": lease.key.id, "attempt": lease.attempt})


def batch_context(topic: str, jobs: int) -> Context:
    """
    Do what `run_context` does for a batch of so many *jobs*.
    """
    return _copy_for("batch", {"topic": topic, "jobs": jobs})


def _copy_for(what: str, about: dict[str, str | int]) -> Context:
    sdk = sys.modules.get("sentry_sdk")
    if sdk is None or not hasattr(sdk, "VERSION"):
        # Not there, or another thread is about to import it.
        return copy_context()
    if not (hasattr(sdk, "is_initialized") and hasattr(sdk, "isolation_scope")):
        _warn_of_old_sdk(sdk.VERSION)
        return copy_context()
    if not sdk.is_initialized():
        return copy_context()
    with sdk.isolation_scope() as scope:
        # What was logged before this run is not about it.
        scope.clear_breadcrumbs()
        scope.set_transaction_name(about["topic"], source="task")
        scope.set_context(what, about)
        return copy_context()


@functools.cache
def _warn_of_old_sdk(version: str) -> None:
    """
    Say once why tags, the user and breadcrumbs of one run may be on the errors of others.
    """
    log.warning(
        "sentry-sdk %s has no isolation scopes, so that runs share what they tell Sentry: install version 2",
        version,
    )
