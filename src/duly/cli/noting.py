"""
The last run of a pipeline, noted in the queue for `duly stats`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duly.cli.loop import session
from duly.cli.options import app_of
from duly.cli.output import say
from duly.errors import DulyError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duly.app import Duly
    from duly.cli.loop import Ask


@contextmanager
def noted(name: str, app: Duly, ask: Ask) -> Iterator[dict[str, int]]:
    """
    Run a pipeline; what it puts into the table that is yielded is noted, and what went wrong as well.
    """
    counts: dict[str, int] = {}
    begun_s = time.monotonic()
    error: str | None = None
    try:
        yield counts
    except DulyError as failure:
        error = str(failure)
        raise
    finally:
        ask(_note(app, name, time.monotonic() - begun_s, counts, error))


@contextmanager
def noted_if_there(name: str) -> Iterator[dict[str, int]]:
    """
    The same for a pipeline that reads files and needs no queue: it is noted where there is one.
    """
    try:
        app = app_of(existing=True)
    except StoreUnavailable:
        yield {}
        return
    counts: dict[str, int] = {}
    begun_s = time.monotonic()
    wrong: str | None = None
    try:
        yield counts
    except DulyError as failure:
        wrong = str(failure)
        raise
    finally:
        try:
            with session(app) as ask:
                ask(_note(app, name, time.monotonic() - begun_s, counts, wrong))
        except DulyError as error:
            # What was asked for is done, whatever the queue is.
            say(f"duly: this run is not noted: {error}")


async def _note(app: Duly, name: str, seconds: float, counts: dict[str, int], error: str | None) -> None:
    from duly.runs import Runs

    try:
        store = await app.store()
        await Runs(store).note(name, seconds=seconds, counts=counts, error=error)
    except StoreUnavailable:
        # The run itself is what counts; its own error, if it has one, says why.
        return
