"""
What a process with a record does beside its work: relay, follow the events, watch the queue, tidy up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Protocol

from duly.errors import DulyError
from duly.pauses import Pauses
from duly.record.database import GrantMissing

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from duly.record.guard import Guard
    from duly.record.idempotency import Expiry
    from duly.record.net import Net
    from duly.record.relay import Relay
    from duly.record.retention import Retention

log = logging.getLogger("duly.record")

WATCH_S = 2.0


class Step(Protocol):
    """
    One duty: does a bounded step and says how much there was to do.
    """

    every_s: float

    async def run_once(self) -> int:
        """
        Do one step.
        """


class Watch:
    """
    Looks whether the queue is still the one that was compared with the record.
    """

    every_s = WATCH_S

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def run_once(self) -> int:
        """
        Compare them again if another server answers, or the same one has lost its memory.
        """
        if await self._guard.changed_server():
            await self._guard.agree()
        return 0


class Upkeep:
    """
    The duties of a record.  None of them ends because a server is away or refuses: it goes on after that.
    """

    def __init__(self, relay: Relay, net: Net, guard: Guard, retention: Retention, expiry: Expiry) -> None:
        self._relay = relay
        self._steps: list[tuple[str, Step]] = [
            ("net", net),
            ("watch", Watch(guard)),
            ("retention", retention),
            ("expiry", expiry),
        ]

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """
        One for each duty, to be cancelled in the end.
        """
        return [self._relay.run(asyncio.Event()), *(_keep_on(name, step) for name, step in self._steps)]


async def _keep_on(name: str, step: Step) -> None:
    pauses, told = Pauses(), ""
    while True:
        try:
            busy = await step.run_once()
        except GrantMissing as error:
            # Other duties go on; this one is tried at its usual times, and named once.
            if str(error) != told:
                told = str(error)
                log.error("%s: %s", name, error)  # noqa: TRY400  # a sentence for who gives grants
            busy = 0
        except DulyError as error:
            log.warning("%s: %s; trying again in %.1f s", name, error, pauses.next_s)
            await pauses.wait()
            continue
        else:
            told = ""
        pauses.reset()
        if not busy:
            await asyncio.sleep(step.every_s * random.uniform(0.9, 1.1))  # jitter, not secrecy
