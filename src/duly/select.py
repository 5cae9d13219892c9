"""
Many jobs, chosen by state, topic and filter, a bounded number at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import UsageError
from duly.job import Job, JobState
from duly.views import PAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from duly.views import Views
    from duly.where import Where

#: In this order jobs are shown: what happens now, what comes, what is over.
ORDER = (
    JobState.running,
    JobState.ready,
    JobState.scheduled,
    JobState.dead,
    JobState.cancelled,
    JobState.succeeded,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """
    Which jobs are meant.
    """

    states: tuple[JobState, ...]
    topics: tuple[str, ...] | None = None  #: None means every topic
    where: Where | None = None

    def narrowed(self) -> Selection:
        """
        The same jobs, looked for only where the filter can find any.
        """
        only = self.where.only if self.where else {}
        states = tuple(
            state for state in ORDER if state in self.states and state.name in only.get("state", [state.name])
        )
        topics = self.topics
        if "topic" in only:
            topics = tuple(sorted(only["topic"] if topics is None else only["topic"].intersection(topics)))
        return Selection(states, topics, self.where)


class Part(NamedTuple):
    """
    Some of the jobs that were chosen.
    """

    jobs: list[Job]
    cursors: list[str]  #: where to go on behind each of them
    seen: int  #: how many were looked at to find these


async def select(
    views: Views,
    selection: Selection,
    *,
    after: str | None = None,
    page: int = PAGE,
    newest: Sequence[int] | None = None,
) -> AsyncIterator[Part]:
    """
    Find jobs, part by part; a part may be empty.  It is no snapshot: jobs move on meanwhile.

    With *newest*, from `Views.newest`, it is for one who acts on jobs.  Those that were changed since are
    left out: who moves jobs to where this still has to look would otherwise meet them again, and again.  And
    states are looked at in the order in which jobs live: one that falls due or begins to run meanwhile is met
    in its next state, if not before.  Only what is tried again goes back to where this has been; who acts on
    running jobs, too, looks a second time, and meets just those.

    Raises:
        UsageError: *after* is no cursor of this selection.
    """
    selection = selection.narrowed()
    now_ms = await views.now_ms()
    states = selection.states if newest is None else sorted(selection.states)
    places = [(state, topic) for state in states for topic in _topics(selection)]
    cursor: str | None = None
    if after is not None:
        at, cursor = _read(after, places)
        places = places[at:]
    for state, topic in places:
        while True:
            found = await views.page(state, topic, cursor=cursor, limit=page)
            jobs, cursors = [], []
            for job, place in zip(found.jobs, found.places, strict=True):
                changed = newest is not None and views.changed(job, newest)
                if not changed and (selection.where is None or selection.where.matches(job, now_ms)):
                    jobs.append(job)
                    cursors.append(f"{state.name},{topic or ''},{place}")
            yield Part(jobs, cursors, len(found.jobs))
            cursor = found.cursor
            if cursor is None:
                break


def _topics(selection: Selection) -> Sequence[str | None]:
    return [None] if selection.topics is None else selection.topics


def _read(after: str, places: list[tuple[JobState, str | None]]) -> tuple[int, str]:
    state, _, rest = after.partition(",")
    topic, comma, cursor = rest.partition(",")
    if state in JobState.__members__ and comma:
        place = (JobState[state], topic or None)
        if place in places:
            return places.index(place), cursor
    raise UsageError(
        f"{after!r} is not a cursor of this list: pass the one that was given with the same filter"
    )
