"""
The app: handlers, and the way to and from the store.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from duly.app.events import Following
from duly.app.oversight import Oversight
from duly.app.sending import Sending
from duly.app.topics import Topics
from duly.app.working import Working
from duly.codec import Codec
from duly.errors import UsageError
from duly.settings import Settings
from duly.sync.twin import SyncDuly
from duly.tracebacks import short_tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


@short_tracebacks
class Duly(Sending, Topics, Following, Oversight, Working):
    """
    Runs functions when they are due.

    Without a URL, jobs wait in an embedded Valkey under ``./.duly``.  With that of a `duly serve`, https://…,
    jobs are sent to it, looked at and steered; workers need the queue's own server.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        codec: Codec | None = None,
        **flags: Any,
    ) -> None:
        """
        Read settings: defaults, duly.toml, DULY_*, and what is said here.  Connects on first use.

        A *codec* may be shared with other apps; without one, the app has its own.

        Raises:
            UsageError: A setting is unknown or wrong.
        """
        if settings is not None and (url is not None or flags):
            msg = "say either settings or single settings by name, not both"
            raise UsageError(msg)
        if settings is not None and not isinstance(settings, Settings):
            raise UsageError(f"settings must be a duly.Settings, not {settings!r}")
        super().__init__(settings or Settings.load(url=url, **flags))
        if codec is not None:
            if not isinstance(codec, Codec):
                raise UsageError(f"codec must be a duly.Codec, not {codec!r}")
            self.handlers.codec = codec
        self.sync = SyncDuly(self._unconnected)  #: the blocking twin, for code without an event loop

    def redirect(
        self, settings: Settings, now: Callable[[], int] | None = None, *, in_test_bed: bool = False
    ) -> None:
        """
        Use other settings, and for tests another clock, from the next call on.

        In a test bed, those are connected with whatever they are.

        Raises:
            UsageError: It is connected.
        """
        if self._connected_loops():
            msg = "the app is connected: close it first, with `await app.aclose()`"
            raise UsageError(msg)
        # What is left of a loop that was closed under it went with that loop.
        server = self._server
        self._begin_unconnected()
        if server is not None:
            server.close()
        self.settings, self._now, self._own, self._in_test_bed = settings, now, None, in_test_bed
        # On a thread that runs a loop it ends by itself, when nobody uses it any more.
        with suppress(UsageError):
            self.sync.close()
        self.sync = SyncDuly(self._unconnected)

    def _unconnected(self) -> Self:
        """
        The same app, handlers and settings, with no connections yet.
        """
        other = copy.copy(self)
        other._is_twin = True  # noqa: SLF001  # it is one of us
        other._begin_unconnected()  # noqa: SLF001  # it is one of us
        del other.sync  # whose loop holds the copy: it would never be without a user
        return other
