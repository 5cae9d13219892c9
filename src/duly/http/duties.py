"""
What the service does beside answering, and whether it makes progress.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duly.services.service import Pulse, end_all, run_forever

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from duly.services.service import Service as Duty


class Duties:
    """
    Background loops with the life of the service.  Liveness is their progress, not that the server answers.
    """

    def __init__(self) -> None:
        self.pulse = Pulse()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, duty: Duty) -> None:
        """
        Run a duty until the service ends; one that fails is reported by `stuck`, and not started again.
        """
        if not self._tasks:
            self._tasks["event loop"] = asyncio.create_task(run_forever(_Tick(), self.pulse, "event loop"))
        self._tasks[name] = asyncio.create_task(run_forever(duty, self.pulse, name))

    def keep(self, *loops: Coroutine[Any, Any, None]) -> None:
        """
        Run loops until the service ends that may wait for others for as long as it takes.
        """
        for loop in loops:
            self._tasks[f"upkeep {len(self._tasks)}"] = asyncio.create_task(loop)

    @property
    def running(self) -> bool:
        """
        Whether there are any.
        """
        return bool(self._tasks)

    def ages(self) -> dict[str, float]:
        """
        How long ago each loop came round, in seconds; loops that ended are not among them.
        """
        return {name: round(age_s, 3) for name, age_s in self.pulse.ages().items()}

    def stuck(self, limit_s: float) -> dict[str, str]:
        """
        The loops that have made no progress for *limit_s*, or have ended, and in words what is wrong.
        """
        found = {
            name: f"no progress for {age_s:.0f} s"
            for name, age_s in self.pulse.ages().items()
            if age_s >= limit_s
        }
        for name, task in self._tasks.items():
            if task.done():
                error = None if task.cancelled() else task.exception()
                found[name] = f"ended with {type(error).__name__}" if error else "ended"
        return found

    async def aclose(self) -> None:
        """
        End them all.
        """
        tasks, self._tasks = list(self._tasks.values()), {}
        await end_all(tasks)


class _Tick:
    """
    Does nothing, often: it comes late where something blocks the event loop.
    """

    every_s = 0.5

    async def run_once(self) -> int:
        return 0
