"""
The explicit way for a test to reach a configured queue.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from duly.binding import is_async
from duly.testrun import TEST_RUN

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

Fn = TypeVar("Fn", bound="Callable[..., Any]")


class RealQueue:
    """
    Lets apps connect to the queues that they are configured with, in a ``with`` or around a function.

    It holds for the whole process, and for processes that are started meanwhile.
    """

    def __enter__(self) -> None:
        TEST_RUN.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        TEST_RUN.close()

    def __call__(self, fn: Fn) -> Fn:
        """
        Decorate a function, async ones too.
        """
        if is_async(fn):

            @functools.wraps(fn)
            async def within_async(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await fn(*args, **kwargs)

            return within_async  # type: ignore[return-value]

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return within  # type: ignore[return-value]


def real_queue() -> RealQueue:
    """
    Let a test reach the queue that its app is configured with, in a ``with`` or as a decorator.

    With pytest, ``@pytest.mark.real_queue`` does the same, around fixtures too.
    """
    return RealQueue()
