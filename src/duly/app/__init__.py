"""
The app: handlers, and the way to and from the store.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from duly.app.sending import Sending
from duly.app.topics import Topics
from duly.app.working import Working
from duly.errors import UsageError
from duly.settings import Settings
from duly.sync.twin import SyncDuly

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class Duly(Sending, Topics, Working):
    """
    Runs functions when they are due.

    Without a URL, jobs wait in an embedded Valkey under ``./.duly``.  With that of a `duly serve`, https://…,
    jobs are sent to it, looked at and steered; workers need the queue's own server.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, **flags: Any) -> None:
        """
        Read settings: defaults, duly.toml, DULY_*, and what is said here.  Connects on first use.

        Raises:
            UsageError: A setting is unknown or wrong.
        """
        if settings is not None and (url is not None or flags):
            msg = "say either settings or single settings by name, not both"
            raise UsageError(msg)
        super().__init__(settings or Settings.load(url=url, **flags))
        self.sync = SyncDuly(self._unconnected)  #: the blocking twin, for code without an event loop

    def redirect(self, settings: Settings, now: Callable[[], int] | None = None) -> None:
        """
        Use other settings, and for tests another clock, from the next call on.

        Raises:
            UsageError: It is connected.
        """
        if self._store is not None and self._loop is not None and not self._loop.is_closed():
            msg = "the app is connected: close it first, with `await app.aclose()`"
            raise UsageError(msg)
        # What is left of a loop that was closed under it went with that loop.
        self._store = self._record = self._waiters = self._loop = self._connecting = None
        if self._server is not None:
            self._server.close()
            self._server = None
        self.settings, self._now = settings, now
        # On a thread that runs a loop it ends by itself, when nobody uses it any more.
        with suppress(UsageError):
            self.sync.close()
        self.sync = SyncDuly(self._unconnected)

    def _unconnected(self) -> Self:
        """
        The same app, handlers and settings, with no connections yet.
        """
        other = copy.copy(self)
        vars(other).update(
            _server=None, _store=None, _record=None, _waiters=None, _loop=None, _connecting=None
        )
        del other.sync  # whose loop holds the copy: it would never be without a user
        return other
