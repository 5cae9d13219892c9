"""
Hooks: functions that an app wants to be told what happens to its runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, Literal

from duly.context import CurrentJob
from duly.interruption import is_interruption
from duly.logs import BRIEF, describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.metrics import Metrics

log = logging.getLogger("duly.hooks")

Moment = Literal["start", "success", "failure", "timeout", "lease_lost"]


class Hooks:
    """
    The hooks of one app, by the moment they wait for.

    A hook that fails is logged; it never changes what becomes of a job.
    """

    def __init__(self) -> None:
        self.start: list[Callable[..., Any]] = []
        self.success: list[Callable[..., Any]] = []
        self.failure: list[Callable[..., Any]] = []
        self.timeout: list[Callable[..., Any]] = []
        self.lease_lost: list[Callable[..., Any]] = []
        self.meter: Metrics | None = None  #: counts what happens

    @property
    def any(self) -> bool:
        """
        Whether there is anybody to tell about an ending.
        """
        return bool(self.success or self.failure or self.timeout)

    async def tell(self, moment: Moment, *about: object) -> None:
        """
        Call every hook of *moment*, one after the other.
        """
        hooks: list[Callable[..., Any]] = getattr(self, moment)
        task = asyncio.current_task()
        for hook in hooks:
            try:
                answer = hook(*about)
                if inspect.isawaitable(answer):
                    await answer
            except BaseException as error:
                if is_interruption(error, task):
                    raise
                job = about[0] if about and isinstance(about[0], CurrentJob) else None
                log.error(  # noqa: TRY400  # with its description in the line, which goes without its traceback
                    "hook on_%s failed: %s",
                    *(moment, describe(error)),
                    exc_info=error,
                    extra=job.log_fields() | BRIEF if job else BRIEF,
                )
