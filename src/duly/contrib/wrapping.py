"""
Code of a framework around handlers, in the thread, the task or the process that they run in.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from duly.context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from duly.app import Duly


def wrap_handlers(
    app: Duly,
    around: Callable[[], AbstractContextManager[Any]],
    around_async: Callable[[], AbstractAsyncContextManager[Any]],
) -> None:
    """
    Run every handler of *app*, those to come too, within a context; a plain call of one is left alone.
    """

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def within_async(*args: Any, **kwargs: Any) -> Any:
                if CURRENT.get(None) is None:
                    return await fn(*args, **kwargs)
                async with around_async():
                    return await fn(*args, **kwargs)

            return within_async

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            if CURRENT.get(None) is None:
                return fn(*args, **kwargs)
            with around():
                return fn(*args, **kwargs)

        return within

    for topic in app.handlers.topics():
        handler = app.handlers.get(topic)
        if handler is not None:
            handler.fn = wrap(handler.fn)
    app.handlers.wrap = wrap
