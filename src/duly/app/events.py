"""
Events: what happens to jobs, as it happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.app.connecting import Connecting
from duly.durations import parse_timeout
from duly.errors import UsageError
from duly.follower import NOW, START, EventFilter, StoreFollower
from duly.offsets import check_places
from duly.remote.follower import RemoteFollower

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duly.durations import Seconds
    from duly.follower import Follower


class Following(Connecting):
    """
    What those call who watch.
    """

    def events(
        self,
        *,
        topics: str | Iterable[str] | None = None,
        verbs: str | Iterable[str] | None = None,
        since: str | None = None,
        wait: Seconds | None = None,
    ) -> Follower:
        """
        What happens to jobs, as it happens: ``async for event in app.events(topics="mail")``.

        It begins now, when the first event is asked for, or at ``async with app.events() as events``.  With
        *since* it goes on behind the ``offset`` of an earlier follower, or begins at "start" with all that is
        still there.  Without *wait* it goes on for ever, else until none came for so long: 0 gives what is
        there now.  Events that are gone raise `EventsLost` with their range, also at "start"; the same
        follower asked again goes on behind them.

        Raises:
            UsageError: A topic, verb, time or offset is none.
        """
        wait_s = parse_timeout(wait, "wait")
        if since is not None and not isinstance(since, str):
            raise UsageError(f"since must be 'start' or the offset of a follower, not {since!r}")
        if since is not None and since not in (NOW, START):
            check_places(since, f"since={since!r}")
        chosen = EventFilter(topics, verbs)
        if self.settings.remote:
            return RemoteFollower(self._remote_link, chosen, since or NOW, wait_s)
        return StoreFollower(self.store, chosen, since or NOW, wait_s)
