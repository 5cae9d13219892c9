"""
A claim that is carried out, and whose answer never comes.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from duly.connection import Link
from duly.errors import OutcomeUnknown
from duly.scripts import library

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

LEASED = 11  #: where in its answer the jobs are that a claim took


def lose_a_claim(
    monkeypatch: pytest.MonkeyPatch,
    *,
    answered: int = 0,
    silent: int = 0,
    then: Callable[[], object] = lambda: None,
) -> asyncio.Event:
    """
    Lose one claim of this process that takes a job, after some that are *answered*, and call *then*.

    So many claims after it are *silent*: they have no answer either, and are not carried out.

    Returns: an event that says that it was lost.
    """
    lost, call, taking, later = asyncio.Event(), Link.call, itertools.count(), iter(range(silent))

    async def lose(self, *command, **options):
        if lost.is_set() and library().function("claim") in command[:2] and next(later, None) is not None:
            raise OutcomeUnknown("no reply")
        answer = await call(self, *command, **options)
        if library().function("claim") in command[:2] and answer[LEASED] and next(taking) == answered:
            lost.set()
            then()
            raise OutcomeUnknown("no reply")
        return answer

    monkeypatch.setattr(Link, "call", lose)
    return lost
