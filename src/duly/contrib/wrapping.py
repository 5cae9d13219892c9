"""
Code of a framework around handlers, in the thread, the task or the process that they run in.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from duly.app import Duly

    Around: TypeAlias = Callable[[], AbstractContextManager[Any]]
    AroundAsync: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


def wrap_handlers(app: Duly, around: Around, around_async: AroundAsync) -> None:
    """
    Run every handler of *app*, those to come too, within a context.

    Only a worker enters it.  A direct call of a handler is a plain one, also within the run of another.
    A later call replaces the context of an earlier one: a handler runs within one, however often it is set.
    """
    wrapper = app.handlers.wrap
    if isinstance(wrapper, Wrapper):
        wrapper.around, wrapper.around_async = around, around_async
        return
    app.handlers.wrap = wrapper = Wrapper(around, around_async)
    for topic in app.handlers.topics():
        handler = app.handlers.get(topic)
        if handler is not None:
            handler.entry = wrapper(handler.fn)


class Wrapper:
    """
    Wraps functions into the context that is set when they are called.
    """

    def __init__(self, around: Around, around_async: AroundAsync) -> None:
        self.around = around
        self.around_async = around_async

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """
        Return *fn* within the context.
        """
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def within_async(*args: Any, **kwargs: Any) -> Any:
                async with self.around_async():
                    return await fn(*args, **kwargs)

            return within_async

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            with self.around():
                answer = fn(*args, **kwargs)
            # A decorator around an async function is a plain one; what it returns has yet to run.
            return self._await_within(answer) if inspect.isawaitable(answer) else answer

        return within

    async def _await_within(self, answer: Awaitable[Any]) -> Any:
        async with self.around_async():
            return await answer
