"""
Looking at jobs over HTTP: get, list, peek, stats.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from duly.glance import StatsDocument, TopicDocument, TopicNowDocument
from duly.job import JobState, shard_of
from duly.remote.answers import (
    PageAnswer,
    RevisionsAnswer,
    TopicsAnswer,
    WorkersAnswer,
    error_of,
    job_of,
    ms_of,
)
from duly.remote.store import STEP, job_answers, needs_server, path_of
from duly.views import (
    Page,
    Stats,
    TopicStats,
    Views,
    check_cursor,
    check_job,
    check_keys,
    check_list,
    check_moment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duly.job import Job, JobKey
    from duly.remote.link import RemoteLink
    from duly.store import Store

T = TypeVar("T")
P = TypeVar("P", TopicsAnswer, WorkersAnswer)

_pages = msgspec.json.Decoder(PageAnswer)
_topics = msgspec.json.Decoder(TopicsAnswer)
_stats = msgspec.json.Decoder(StatsDocument)
_workers = msgspec.json.Decoder(WorkersAnswer)
_revisions = msgspec.json.Decoder(RevisionsAnswer)


class RemoteViews(Views):
    """
    Questions that a service answers.
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
        check_keys([key])
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
        keys = check_keys(keys)
        for at in range(0, len(keys), STEP):
            found += await asyncio.gather(*(self.get(key) for key in keys[at : at + STEP]))
        return found

    async def page(
        self, state: JobState, topic: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """
        Jobs in one state, a page at a time.

        Raises:
            UsageError: The cursor is not one of the service's, or the state, topic or limit is none.
        """
        state, limit = check_list(state, topic, limit)
        cursor = check_cursor(cursor)
        params = {"state": state.name, "limit": str(limit), "places": "true"}
        if cursor is not None:
            params["cursor"] = cursor
        path = "/v1/jobs" if topic is None else f"/v1/topics/{topic}/jobs"
        page = await self._ask(_pages, path, params)
        return Page([job_of(answer) for answer in page.jobs], page.cursor, page.places)

    async def stats(self) -> Stats:
        """
        Counters, workers and what is overdue; for a key that is bound to topics, what concerns these.
        """
        told = await self.document()
        workers = await self.workers(0)
        topics = [
            TopicStats(
                about.topic,
                {state.name: getattr(about, state.name) for state in JobState},
                paused=about.paused,
                limit=about.limit,
                workers=about.workers,
                callback=about.callback,
            )
            for about in told.topics
        ]
        next_due_ms = ms_of(told.next_due_at) if told.next_due_at else None
        return Stats(topics, next_due_ms, told.unpromoted_ms, workers, told.quarantined)

    async def document(self) -> StatsDocument:
        """
        The queue at a glance.
        """
        told = await self._ask(_stats, "/v1/stats")
        if told.more_topics:
            known = {each.topic for each in told.topics}
            more = [each for each in await self._topics() if each.topic not in known]
            # How long their jobs are overdue is told of the first ones only.
            told.topics += [
                TopicNowDocument(**msgspec.structs.asdict(each), overdue_ms=None) for each in more
            ]
            told.more_topics = 0
        return told

    async def workers(self, now_ms: int) -> list[dict[str, Any]]:
        """
        What workers say of themselves, and whether they were heard within a lease: by the service's clock.
        """
        check_moment(now_ms)
        return [row for page in await self._pages(_workers, "/v1/workers") for row in page.workers]

    async def newest(self) -> list[int]:
        """
        The newest numbers there are, for `changed`: how many shards there are, and then those numbers.
        """
        told = await self._ask(_revisions, "/v1/revisions")
        return [told.shards, *told.newest]

    def changed(self, job: Job, newest: Sequence[int]) -> bool:
        """
        Whether a job was sent or changed after `newest` was asked; its runs do not count.
        """
        check_job(job)
        shards, numbers = newest[0], newest[1:]
        if len(numbers) > shards:
            return job.revision > numbers[-1]
        return job.revision > numbers[shard_of(job.topic, job.id, shards)]

    async def _ask(
        self, decoder: msgspec.json.Decoder[T], path: str, params: Mapping[str, str] | None = None
    ) -> T:
        reply = await self._link.call("GET", path, params=params)
        if reply.problem is None:
            return self._link.decode(decoder, reply)
        if reply.problem.kind in ("not-found", "method-not-allowed"):
            raise needs_server(self._link.place)
        raise error_of(reply.problem, self._link.place, params)

    async def topics(self) -> list[str]:
        """
        Every topic that has or had jobs, and that the key sees.

        Raises:
            Unsupported: The service does not list them.
        """
        return [each.topic for each in await self._topics()]

    async def _topics(self) -> list[TopicDocument]:
        return [row for page in await self._pages(_topics, "/v1/topics") for row in page.topics]

    async def _pages(self, decoder: msgspec.json.Decoder[P], path: str) -> list[P]:
        """
        Return all pages of a list.
        """
        pages = [await self._ask(decoder, path)]
        while pages[-1].cursor:
            pages.append(await self._ask(decoder, path, {"cursor": pages[-1].cursor}))
        return pages

    async def now_ms(self) -> int:
        """
        The time by the service's clock: in whole seconds, and up to a second old.
        """
        said = (await self._link.look()).headers.get("date")
        return int((parsedate_to_datetime(said).timestamp() if said else time.time()) * 1000)
