"""
What is said of a topic as a whole: pause and resume, a limit, a callback, a purge.
"""

from __future__ import annotations

from duly.app.connecting import Connecting
from duly.job import JobState, check_topic
from duly.options import at_least_one
from duly.urls import parse_url
from duly.views import PAGE


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
            at_least_one(backlog, "backlog", 2**53)
        await (await self.queue()).limit(check_topic(topic), backlog)

    async def callback(self, topic: str, url: str | None) -> None:
        """
        Have the jobs of *topic* delivered to *url* instead of run by workers; None ends that.

        Raises:
            UsageError: It is no URL that callbacks may have.
        """
        found = None if url is None else parse_url(url).url
        await (await self.store()).set_callback(check_topic(topic), found)

    async def purge(self, topic: str) -> int:
        """
        Cancel every job of *topic* that waits, scheduled or ready; how many that were.
        """
        check_topic(topic)
        queue, views = await self.queue(), await self.views()
        purged = 0
        for state in (JobState.scheduled, JobState.ready):
            cursor: str | None = None
            while True:
                page = await views.page(state, topic, cursor=cursor, limit=PAGE)
                ended = await queue.cancel([job.key for job in page.jobs], reason="purged")
                purged += sum(each is JobState.cancelled for each in ended)
                if page.cursor is None:
                    break
                cursor = page.cursor
        return purged
