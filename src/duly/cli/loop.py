"""
Run coroutines on the fastest event loop there is.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from duly.app import Duly

T = TypeVar("T")


class Ask(Protocol):
    """
    Runs one coroutine to its end.
    """

    def __call__(self, question: Coroutine[Any, Any, T], /) -> T:
        """
        Return what the coroutine returned.
        """


def run(main: Coroutine[Any, Any, T]) -> T:
    """
    Run *main* to its end.
    """
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


@contextmanager
def session(app: Duly) -> Iterator[Ask]:
    """
    Ask *app* one thing after the other, and close it in the end.

    The loop stands still between two questions, so that Ctrl-C ends a prompt or a read from a pipe at once.
    """
    with asyncio.Runner(loop_factory=_factory()) as runner:
        try:
            yield runner.run
        finally:
            runner.run(app.aclose())


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # an accelerator: used where it is there
    except ImportError:
        return None
    return uvloop.new_event_loop
