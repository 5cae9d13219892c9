"""
Following events, blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.errors import Unsupported

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Never, Self

    from duly.events import Event
    from duly.follower import Follower
    from duly.sync.twin import SyncDuly


class SyncFollower:
    """
    The blocking twin of `Follower`: ``for event in app.sync.events()``.
    """

    def __init__(self, twin: SyncDuly, follower: Follower) -> None:
        self._twin = twin
        self._follower = follower

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        """
        Take the place to begin at: what happens from here on is seen.
        """
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def offset(self) -> str | None:
        """
        Where to go on behind the last event that was given; see `Follower.offset`.
        """
        return self._follower.offset

    def begin(self) -> None:
        """
        Take the place to begin at, unless that was done; see `Follower.begin`.
        """
        self._twin.run(self._follower.begin())

    def next(self) -> Event | None:
        """
        Return the next event; None where none came in the time that was said; see `Follower.next`.
        """
        return self._twin.run(self._follower.next())

    def close(self) -> None:
        """
        Give back what is connected; asked again, it goes on behind the last event.
        """
        self._twin.run(self._follower.aclose())

    def aclose(self) -> Never:
        """
        Refuse: the twin's own is `close`.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported("a follower of app.sync is not awaited: close it with events.close()")
