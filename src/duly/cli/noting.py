"""
The last run of a pipeline, noted in the queue for `duly stats`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from duly.cli.loop import session
from duly.cli.options import app_of
from duly.cli.output import say
from duly.errors import DulyError, ServerUnsuitable, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from duly.app import Duly


@contextmanager
def noted(name: str, app: Duly, ask: Callable[[Coroutine[Any, Any, None]], None]) -> Iterator[dict[str, int]]:
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

    def ask(note: Coroutine[Any, Any, None]) -> None:
        try:
            # Only now: the queue need not be there before.
            with session(app) as asking:
                asking(note)
        except DulyError as error:
            # What was asked for is done, whatever the queue is.
            note.close()
            say(f"duly: this run is not noted: {error}")

    with noted(name, app, ask) as counts:
        yield counts


async def _note(app: Duly, name: str, seconds: float, counts: dict[str, int], error: str | None) -> None:
    from duly.runs import Runs

    try:
        store = await app.store()
        await Runs(store).note(name, seconds=seconds, counts=counts, error=error)
    except (StoreUnavailable, ServerUnsuitable):
        # The run itself is what counts; its own error, if it has one, says why.
        return
