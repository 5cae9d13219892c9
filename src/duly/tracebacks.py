"""
Tracebacks that callers see of a store that was not reached, and of an extra that is not installed: their own
lines, and one sentence.

What happened on the way there, in duly and in its clients, is a hundred lines that say no more. It is
logged at DEBUG, and a debugger finds the cause in the error's ``__context__``.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any, TypeVar

from duly.errors import SERVER_ERRORS, DulyError
from duly.extras import ExtraMissing

log = logging.getLogger("duly")

C = TypeVar("C", bound=type)
F = TypeVar("F")

_SHORTENS = "__shortens__"

NOT_REACHED = (*SERVER_ERRORS, ExtraMissing)


def shorten(error: DulyError) -> DulyError:
    """
    Return *error* without its frames so far, to be raised ``from None``.
    """
    # Without a cause and raised from None, it comes from a method of ours that another one called.
    if error.__cause__ is not None or not error.__suppress_context__:
        log.debug("%s", error, exc_info=error)
        error.__context__ = error.__cause__ or error.__context__
    return error.with_traceback(None)


def shortens(method: F) -> F:
    """
    Mark a method that does it itself: what is called for every job has no coroutine around it.
    """
    setattr(method, _SHORTENS, True)
    return method


def short_tracebacks(cls: C) -> C:
    """
    Shorten what the public coroutine methods of *cls* raise of what was not reached.
    """
    for name, method in inspect.getmembers_static(cls, inspect.iscoroutinefunction):
        if (not name.startswith("_") or name == "__aenter__") and not hasattr(method, _SHORTENS):
            setattr(cls, name, _shortly(method))
    return cls


def _shortly(method: Any) -> Any:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except NOT_REACHED as error:
            raise shorten(error) from None

    return call
