"""
What to say of a job that has not ended in time: where it waits, and whether a worker takes it there.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from duly.durations import say_duration, say_time
from duly.errors import DulyError

if TYPE_CHECKING:
    from duly.app.connecting import Connecting
    from duly.job import Job, JobKey

LOOK_S = 2.0  #: how long a caller who has waited long enough may be kept for the sake of the message


async def not_ended(app: Connecting, key: JobKey, within_s: float) -> str:
    """
    Return a sentence about a job that has not ended within so many seconds.

    A sender and a worker in two folders use two queues, and neither notices: so the queue is named.
    """
    said = f"{key} has not ended within {say_duration(within_s * 1000)}"
    with suppress(DulyError, TimeoutError):
        async with asyncio.timeout(LOOK_S):
            views = await app.views()
            job = await views.get(key)
            workers = await views.workers(await views.now_ms())
            live = sum(worker["live"] and key.topic in worker.get("topics", ()) for worker in workers)
            if job is not None and not (job.envelope and job.envelope.callback):
                return f"{said}: {_about(app, job, live)}"
    return f"{said}: is a worker running that takes {key.topic}, on {app.place}?"


def _about(app: Connecting, job: Job, live: int) -> str:
    state = job.state.name
    if state == "scheduled" and job.due_at is not None:
        state = f"scheduled for {say_time(job.due_at)}"
    if live:
        takes = "1 worker takes" if live == 1 else f"{live} workers take"
        return f"it is {state}, and {takes} {job.topic} on {app.place}"
    return (
        f"it is {state}, and no worker takes {job.topic} on {app.place}; "
        "start one there, in the same folder or with the same --url: duly work MODULE:APP"
    )
