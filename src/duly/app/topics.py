"""
What is said of a topic as a whole: pause and resume, a limit, a callback, a purge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.allowlist import check_callback
from duly.app.connecting import Connecting
from duly.job import JobState, check_topic
from duly.options import at_least_one
from duly.remote.store import RemoteStore
from duly.views import PAGE, check_cursor, check_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.record.assembly import WholeRecord
    from duly.store import Store
    from duly.views import Views

MAX_BACKLOG = 2**53 - 1  #: as far as every reader of JSON counts
WAITING = (JobState.scheduled, JobState.ready)


class Topics(Connecting):
    """
    What operators call.
    """

    async def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* start; running ones finish, due ones wait.
        """
        await (await self.queue()).pause(check_topic(topic))

    async def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* start again; the time it was paused is not lateness.
        """
        await (await self.queue()).resume(check_topic(topic))

    async def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait, with `QueueFull`; None lifts the limit.

        Raises:
            UsageError: The limit is not a whole number of 1 or more.
        """
        if backlog is not None:
            at_least_one(backlog, "backlog", MAX_BACKLOG)
        await (await self.queue()).limit(check_topic(topic), backlog)

    async def callback(self, topic: str, url: str | None) -> None:
        """
        Have the jobs of *topic* delivered to *url* instead of run by workers; None ends that.

        Raises:
            UsageError: It is no URL that callbacks may have.
        """
        found = None if url is None else check_callback(url, self.settings.limits.callbacks)
        await (await self._backend()).set_callback(check_topic(topic), found)

    async def purge(self, topic: str, *, state: JobState | None = None) -> int:
        """
        Cancel every job of *topic* that waits, scheduled or ready; with *state* only those in that one.

        Returns: the number of jobs cancelled.

        Raises:
            UsageError: Jobs in that state do not wait.
        """
        purged = 0
        for each in WAITING if state is None else (state,):
            cursor: str | None = None
            while True:
                count, cursor = await self.purge_some(topic, each, cursor)
                purged += count
                if cursor is None:
                    break
        return purged

    async def purge_some(
        self, topic: str, state: JobState, cursor: str | None = None
    ) -> tuple[int, str | None]:
        """
        Cancel a bounded number of jobs of *topic* that wait in one state; how many, and where to go on.

        Raises:
            UsageError: Jobs in that state do not wait, or the cursor is not one of ours.
        """
        check_topic(topic)
        state = check_state(state, WAITING, ": it purges what waits")
        check_cursor(cursor)
        queue = await self.queue()
        if isinstance(queue, RemoteStore):
            return await queue.purge(topic, state, cursor)
        return await purge_page(await self.views(), queue, topic, state, cursor)


async def purge_page(
    views: Views,
    queue: Store | WholeRecord,
    topic: str,
    state: JobState,
    cursor: str | None,
    newest: Sequence[int] | None = None,
) -> tuple[int, str | None]:
    """
    Cancel a page of the jobs of *topic* that wait in one state; how many, and where to go on.

    With *newest*, from `Views.newest`, those are left alone that were sent or changed since.
    """
    page = await views.page(state, topic, cursor=cursor, limit=PAGE)
    keys = [job.key for job in page.jobs if newest is None or not views.changed(job, newest)]
    ended = await queue.cancel(keys, reason="purged")
    return sum(each is JobState.cancelled for each in ended), page.cursor
