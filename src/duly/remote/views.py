"""
Looking at jobs over HTTP: get, list, peek.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import msgspec

from duly.errors import UsageError
from duly.remote.answers import PageAnswer, TopicsAnswer, error_of, job_of
from duly.remote.store import STEP, job_answers, path_of
from duly.views import PAGE, Page, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import Job, JobKey, JobState
    from duly.remote.link import RemoteLink
    from duly.store import Store

_pages = msgspec.json.Decoder(PageAnswer)
_topics = msgspec.json.Decoder(TopicsAnswer)


def needs_server(place: str) -> UsageError:
    """
    The refusal of what the service does not offer.
    """
    return UsageError(
        f"{place} is a queue's HTTP service: it takes jobs and tells of them. Workers, and whatever looks at "
        "the whole queue, need its own server, a redis:// URL; a worker may also use the service's own calls"
    )


class RemoteViews(Views):
    """
    Questions about single jobs, and lists of those of one topic.
    """

    def __init__(self, link: RemoteLink) -> None:
        self._link = link

    @property
    def _store(self) -> Store:  # type: ignore[override]  # whatever would ask the server says why it cannot
        raise needs_server(self._link.place)

    async def get(self, key: JobKey) -> Job | None:
        """
        The job as it is now, None if there is none.
        """
        reply = await self._link.call("GET", path_of(key))
        if reply.problem is None:
            return job_of(self._link.decode(job_answers, reply))
        if reply.problem.kind == "job-not-found":
            return None
        raise error_of(reply.problem, self._link.place)

    async def get_many(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """
        Jobs as they are now, each at one moment.
        """
        found: list[Job | None] = []
        for at in range(0, len(keys), STEP):
            found += await asyncio.gather(*(self.get(key) for key in keys[at : at + STEP]))
        return found

    async def page(
        self, state: JobState, topic: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """
        Jobs of one topic in one state, a page at a time.

        Raises:
            UsageError: No topic was said, or the cursor is not one of the service's.
        """
        if topic is None:
            raise UsageError(f"{self._link.place} lists the jobs of one topic: say which")
        params = {"state": state.name, "limit": str(min(limit, PAGE))}
        if cursor is not None:
            params["cursor"] = cursor
        reply = await self._link.call("GET", f"/v1/topics/{topic}/jobs", params=params)
        if reply.problem is not None:
            raise error_of(reply.problem, self._link.place)
        page = self._link.decode(_pages, reply)
        return Page([job_of(answer) for answer in page.jobs], page.cursor)

    async def topics(self) -> list[str]:
        """
        Every topic that has or had jobs, and that the key sees.

        Raises:
            UsageError: The service does not list them.
        """
        reply = await self._link.call("GET", "/v1/topics")
        if reply.problem is None:
            return [each.topic for each in self._link.decode(_topics, reply).topics]
        if reply.problem.kind in ("not-found", "method-not-allowed"):
            raise needs_server(self._link.place)
        raise error_of(reply.problem, self._link.place)

    async def now_ms(self) -> int:
        """
        The time by the service's clock, to the second.
        """
        said = (await self._link.look()).headers.get("date")
        return int((parsedate_to_datetime(said).timestamp() if said else time.time()) * 1000)
