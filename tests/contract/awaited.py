"""
The blocking twin, awaited: each call runs in a thread, so that a test written for the app fits it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from duly import Duly, JobHandle, Reply
from duly.apikeys import KeyRing
from duly.follower import Follower
from duly.quarantine import Quarantine
from duly.replies import Replies
from duly.sync.follower import SyncFollower
from duly.sync.keyring import SyncKeyRing
from duly.sync.quarantine import SyncQuarantine
from duly.sync.replies import SyncReplies, SyncReply
from duly.sync.twin import SyncDuly, SyncJobHandle, SyncViews
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

#: What each twin is the twin of: which of its methods are awaited is read there.
ORIGINALS: dict[type, type] = {
    SyncDuly: Duly,
    SyncJobHandle: JobHandle,
    SyncViews: Views,
    SyncReply: Reply,
    SyncReplies: Replies,
    SyncKeyRing: KeyRing,
    SyncFollower: Follower,
    SyncQuarantine: Quarantine,
    Session: AsyncSession,
}

_END = object()
# More than a test has calls under way: one that waits for a place would look like a queue that hangs.
_threads = ThreadPoolExecutor(64, thread_name_prefix="awaited")


async def in_thread(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """
    Call *fn* in a thread, with the context of the caller, and wait for it.
    """
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(
        _threads, lambda: context.run(fn, *args, **options)
    )


class Awaited:
    """
    A twin whose calls are awaited where those of the app are.
    """

    def __init__(self, twin: Any) -> None:
        self._twin = twin

    def __repr__(self) -> str:
        return f"<Awaited {self._twin!r}>"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._twin, name)
        if not callable(found):
            return found
        original = getattr(ORIGINALS[type(self._twin)], name)

        async def awaited(*args: Any, **options: Any) -> Any:
            return _as_app_has_it(await in_thread(found, *args, **_as_twin_has_it(options)))

        def called(*args: Any, **options: Any) -> Any:
            return _as_app_has_it(found(*args, **options))

        return awaited if inspect.iscoroutinefunction(original) else called

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        found = await in_thread(next, self._twin, _END)
        if found is _END:
            raise StopAsyncIteration
        return _as_app_has_it(found)

    async def __aenter__(self) -> Self:
        await in_thread(self._twin.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await in_thread(self._twin.__exit__, *error)


def _as_app_has_it(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_app_has_it(each) for each in value]
    return Awaited(value) if type(value) in ORIGINALS or isinstance(value, Iterator) else value


def _as_twin_has_it(options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value._twin if isinstance(value, Awaited) else value  # one of its own kind
        for name, value in options.items()
    }
