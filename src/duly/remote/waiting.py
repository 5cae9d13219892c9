"""
Waiting for jobs to end, by asking the service to answer when they have.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from duly.errors import JobNotFound
from duly.job import Ended, JobKey, JobState
from duly.remote.answers import error_of, outcome_of
from duly.remote.store import job_answers, needs_server, path_of

if TYPE_CHECKING:
    from duly.remote.link import RemoteLink

LONG_S = 20.0  #: shorter than what stands between lets a request be silent
SHORT_S = 1.0  #: where more wait than may ask at once, they take turns
PACE_S = 0.5  #: between two questions, also to a service that lets nobody wait


class RemoteWaiters:
    """
    Who waits for which job: a request under way for each.
    """

    def __init__(self, link: RemoteLink) -> None:
        self.link = link

    async def ended(self, key: JobKey) -> Ended:
        """
        Wait until the job has ended, and return how.

        Raises:
            JobNotFound: There is no such job (any more).
        """
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            wait_s = SHORT_S if self.link.crowded else LONG_S
            reply = await self.link.call("GET", path_of(key), params={"wait": f"{wait_s:g}"}, wait_s=wait_s)
            if reply.problem is not None:
                if reply.problem.kind == "job-not-found":
                    msg = f"there is no job {key}: it was pruned, or never was"
                    raise JobNotFound(msg)
                raise error_of(reply.problem, self.link.place)
            answer = self.link.decode(job_answers, reply)
            state = JobState[answer.state]
            if state.ended:
                return Ended(state, outcome_of(answer), answer.result_gone)
            await asyncio.sleep(max(0.0, began + PACE_S - loop.time()))

    def expecting(self, what: str) -> NoReturn:
        """
        Refuse: nobody is told of something by the service, each asks for itself.

        Raises:
            Unsupported: Always.
        """
        del what
        raise needs_server(self.link.place)

    async def aclose(self) -> None:
        """
        Nothing is kept.
        """
